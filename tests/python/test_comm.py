"""holon.comm on ranks that are threads: what every collective leaves on every rank, and what wrong calls say."""

import pytest

import holon
from holon import comm, nn


def on_ranks(n, function):
    return holon.run_ranks(n, function)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_collectives(n):
    def check(rank):
        x = holon.ones(2) * (rank + 1)
        assert comm.all_reduce(x) is x and x.tolist() == [n * (n + 1) / 2] * 2
        x = holon.arange(3) + rank
        assert comm.broadcast(x, n - 1) is x and x.tolist() == [n - 1, n, n + 1]
        x = holon.ones(2)
        comm.reduce(x, n - 1)
        assert x[0].item() == (n if rank == n - 1 else 1)
        each = [holon.zeros(2) for _ in range(n)]
        comm.all_gather(each, holon.ones(2) * rank)
        assert [t.tolist() for t in each] == [[r, r] for r in range(n)]
        behind, beside = holon.zeros(2 * n), holon.zeros(n, 2)
        comm.all_gather_into_tensor(behind, holon.ones(2) * rank)
        comm.all_gather_into_tensor(beside, holon.ones(2) * rank)
        assert behind.tolist() == [r for r in range(n) for _ in range(2)] and beside[:, 0].tolist() == list(range(n))
        each = [holon.zeros(2) for _ in range(n)] if rank == 0 else None
        comm.gather(holon.ones(2) * rank, each, dst=0)
        assert rank or [t[0].item() for t in each] == list(range(n))
        x = holon.zeros(2)
        comm.scatter(x, [holon.ones(2) * i for i in range(n)] if rank == n - 1 else None, src=n - 1)
        assert x[0].item() == rank
        each = [holon.zeros(1, 2) for _ in range(n)]
        comm.all_to_all(each, [holon.ones(1, 2) * (10 * rank + i) for i in range(n)])
        assert [t[0, 0].item() for t in each] == [10 * i + rank for i in range(n)]
        x = holon.zeros(2)
        comm.reduce_scatter(x, [holon.ones(2) * i for i in range(n)])
        assert x.tolist() == [rank * n] * 2
        x = holon.zeros(3)
        comm.reduce_scatter_tensor(x, holon.arange(3 * n, dtype=holon.float32))
        assert x.tolist() == [n * (3 * rank + i) for i in range(3)]

    on_ranks(n, check)


def test_send_and_recv():
    def check(rank):
        ring = holon.arange(6).reshape(2, 3)[:, ::2] * (rank + 1)  # no rows in one piece
        if rank == 0:
            comm.send(ring, 2)
            back = comm.recv(2)
            assert back.tolist() == [[0, 6], [9, 15]] and back.dtype == holon.int64
            comm.send(holon.ones(4, dtype=holon.bfloat16), 2, send_meta=False)
            comm.send(holon.zeros(0, 3), 2)
        elif rank == 2:
            assert comm.recv(0).tolist() == [[0, 2], [3, 5]]
            comm.send(ring, 0)
            assert comm.recv(0, shape=(4,), dtype=holon.bfloat16, device=holon.device("cpu")).dtype == holon.bfloat16
            into = holon.ones(0, 3)
            assert comm.recv(0, out=into) is into

    on_ranks(3, check)


def test_wrong_calls():
    def check(rank):
        x = holon.ones(2)
        with pytest.raises(TypeError, match="takes local tensors, got list"):
            comm.all_reduce([1])
        with pytest.raises(ValueError, match="global"):
            comm.all_reduce(holon.ones(2, placement=holon.placement.all("cpu"), sbp=holon.sbp.broadcast))
        with pytest.raises(ValueError, match="one tensor for each of 2 ranks"):
            comm.all_gather([x], x)
        with pytest.raises(ValueError, match="rank from 0 to 1"):
            comm.broadcast(x, 2)
        with pytest.raises(ValueError, match="this rank itself"):
            comm.recv(rank)
        with pytest.raises(ValueError, match="rank from 0 to 1"):
            comm.send(x, 7)
        with pytest.raises(ValueError, match="belong together"):
            comm.recv(1 - rank, shape=(2,))
        with pytest.raises(ValueError, match="is not 2 outputs"):
            comm.reduce_scatter_tensor(x, holon.ones(3))

    on_ranks(2, check)


def test_data_parallel_module():
    def check(rank):
        holon.manual_seed(rank)  # parameters that differ until the wrapper makes them alike
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        model[1].running_mean.fill_(float(rank))
        model = nn.parallel.DistributedDataParallel(model, device_ids=[0])
        assert model[1].running_mean[0].item() == rank
        model(holon.ones(2, 3) * (rank + 1)).sum().backward()
        assert model[0].weight.grad is not None
        return model[0].weight.numpy().tolist(), model[2].bias.grad.tolist(), model[2].weight.grad.tolist()

    first, second = on_ranks(2, check)
    assert first == second and first[1] == [2.0]

    def wrong(rank):
        with pytest.raises(ValueError, match="weight is global"):
            nn.parallel.DistributedDataParallel(
                nn.Linear(2, 2).to_global(holon.placement.all("cpu"), holon.sbp.broadcast)
            )
        with pytest.raises(TypeError, match="no_such"):
            nn.parallel.DistributedDataParallel(nn.Linear(2, 2), no_such=1)

    on_ranks(2, wrong)


def test_gradients_are_means_over_ranks():
    def check(rank):
        model = nn.Linear(2, 1, bias=False)
        model.weight.data.fill_(1.0)
        nn.parallel.DistributedDataParallel(model)
        for _ in range(2):  # accumulated
            (model(holon.ones(1, 2) * (rank + 1)).sum()).backward()
        return model.weight.grad.tolist()

    assert on_ranks(3, check) == [[[4.0, 4.0]]] * 3


class Uneven(nn.Module):
    """Rank 0 uses `often` three times and `seldom` never; others use both once, in another order."""

    def __init__(self):
        super().__init__()
        self.often, self.seldom, self.frozen = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False), nn.Linear(2, 2)
        for p in self.parameters():
            p.data.fill_(1.0)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        if holon.env.get_rank() == 0:
            return {"y": self.often(x) + self.often(x) + self.often(x), "steps": [3]}
        return {"y": self.seldom(x) + self.often(x), "steps": [1]}


def test_ranks_may_use_parameters_unequally_often():
    def check(rank):
        model = nn.parallel.DistributedDataParallel(Uneven())
        out = model(holon.ones(1, 2))
        assert out["steps"] == [3 if rank == 0 else 1]
        out["y"].sum().backward()
        assert model.frozen.weight.grad is None
        return model.often.weight.grad.tolist(), model.seldom.weight.grad.tolist()

    assert on_ranks(2, check) == [([[2.0, 2.0]] * 2, [[0.5, 0.5]] * 2)] * 2


def test_a_parameter_is_reduced_once_for_all_its_uses(monkeypatch):
    from holon import comm

    all_reduce, calls = comm.all_reduce, []
    monkeypatch.setattr(comm, "all_reduce", lambda x, *rest: calls.append(x) or all_reduce(x, *rest))

    def check(rank):
        layer = nn.Linear(2, 2, bias=False)
        nn.parallel.DistributedDataParallel(layer)
        layer(layer(layer(holon.ones(1, 2)))).sum().backward()

    on_ranks(2, check)
    assert len(calls) == 2  # one on each rank


def test_parameters_that_are_freed_after_wrapping():
    def check(rank):
        layer = nn.Linear(2, 1, bias=False)
        layer.weight.requires_grad_(False)
        nn.parallel.DistributedDataParallel(layer)
        layer.weight.requires_grad_(True)
        layer(holon.ones(1, 2) * (rank + 1)).sum().backward()
        return layer.weight.grad.tolist()

    assert on_ranks(2, check) == [[[1.5, 1.5]]] * 2
