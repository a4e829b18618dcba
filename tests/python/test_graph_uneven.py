"""Batches that the micro-batches of an nn.Graph do not divide, and last batches of an epoch: against eager steps on the
whole batch, or micro-batch by micro-batch where that makes a difference."""

import numpy as np
import pytest
from holon.utils.data import DataLoader, TensorDataset

import holon
from holon import nn, optim

B, S0 = holon.sbp.broadcast, holon.sbp.split(0)
LAYOUTS = {"1": (1, 1), "dp": (2, 1), "pp": (1, 2), "dp x pp": (2, 2)}


class Mlp(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Sequential(nn.Linear(6, 16), nn.Tanh()), nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
        )


class Normed(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU()),
            nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)),
        )


class Dropped(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.3)),
            nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 4)),
        )


class Gpt(nn.Sequential):
    """Numbers of tokens are those of the features, so that the data is the same."""

    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(9, 8), nn.Parameter(holon.randn(6, 8) * 0.1)
            self.block = nn.TransformerEncoderLayer(8, 2, dim_feedforward=12, dropout=0.0, batch_first=True)

        def forward(self, x):
            return self.block(self.tokens((x * 2).round().clamp(-4, 4).long() + 4) + self.positions)

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.block, self.head = (
                nn.TransformerEncoderLayer(8, 2, dim_feedforward=12, dropout=0.0, batch_first=True),
                nn.Linear(8, 4),
            )

        def forward(self, x):
            return self.head(self.block(x).mean(1))

    def __init__(self):
        super().__init__(self.First(), self.Last())


def placements(layout):
    dp, pp = LAYOUTS[layout]
    return [holon.placement("cpu", list(range(stage * dp, (stage + 1) * dp))) for stage in range(pp)]


def make(model, layout):
    holon.manual_seed(4)
    net, at = model(), placements(layout)
    for i, part in enumerate(net):
        part.to_global(at[i % len(at)] if len(at) > 1 else at[0], B)
    return net


def batches(rows, epochs=1):
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(rows[-1], 6)).astype(np.float32), rng.integers(0, 4, rows[-1])
    return [(x[a:b], y[a:b]) for _ in range(epochs) for a, b in zip([0, *rows], rows)]


def on(array, placement, sbp):
    return holon.tensor(array).to_global(placement, B).to_global(placement, sbp)


class Train(nn.Graph):
    def __init__(self, net, optimizer, layout, micro_batches, schedule=None, **options):
        super().__init__()
        self.net = net
        at = placements(layout)
        if len(at) > 1:
            for i, part in enumerate(net):
                part.to(nn.graph.GraphModule).set_stage(i, at[i])
        self.add_optimizer(optimizer, lr_sch=schedule)
        self.config.set_gradient_accumulation_steps(micro_batches, uneven=True)
        self.config.verify()
        if "schedule_name" in options:
            self.config.pipeline(schedule=options["schedule_name"])
        if options.get("amp"):
            self.config.enable_amp(True)
        if options.get("zero"):
            self.config.enable_zero(True, stage=options["zero"])
        if options.get("recompute"):
            for part in net:
                part.to(nn.graph.GraphModule).activation_checkpointing = True

    def build(self, x, y):
        loss = nn.functional.cross_entropy(self.net(x), y)
        loss.backward()
        return loss


def train_graph(model, layout, data, micro_batches, make_schedule=None, **options):
    net, at = make(model, layout), placements(layout)
    optimizer = optim.AdamW(net.parameters(), lr=1e-2, eps=1e-3)
    schedule = make_schedule(optimizer) if make_schedule else None
    graph = Train(net, optimizer, layout, micro_batches, schedule, **options)
    losses = [graph(on(x, at[0], S0), on(y, at[-1], S0)).full_value().mean().item() for x, y in data]
    return graph, losses, {name: t.full_value().numpy() for name, t in net.state_dict().items()}, optimizer


def rows_of(n, dp, micro_batches):
    """Indices of each micro-batch's rows: of each data-parallel rank's the next in turn, in a balanced split."""
    parts = np.array_split(np.arange(n), dp)
    count = max(1, min(micro_batches, n // dp))
    cuts = [np.array_split(p[: n // dp], count) for p in parts]
    for part, cut in zip(parts, cuts):
        cut[-1] = np.concatenate([cut[-1], part[n // dp :]])
    return [np.concatenate([cut[m] for cut in cuts]) for m in range(count)]


def train_eager(model, layout, data, micro_batches=1, make_schedule=None, amp=False):
    dp, net = LAYOUTS[layout][0], make(model, layout)
    at = placements(layout)
    optimizer = optim.AdamW(net.parameters(), lr=1e-2, eps=1e-3)
    schedule = make_schedule(optimizer) if make_schedule else None
    losses = []
    for x, y in data:
        total = 0
        for rows in rows_of(len(x), dp, micro_batches):
            with holon.autocast("cpu", dtype=holon.bfloat16, enabled=amp):
                h = net[0](on(x[rows], at[0], S0))
                loss = nn.functional.cross_entropy(net[1](h.to_global(at[-1], S0)), on(y[rows], at[-1], S0))
            (loss * (len(rows) / len(x))).backward()
            total += loss.full_value().item() * len(rows) / len(x)
        optimizer.step()
        optimizer.zero_grad()
        if schedule:
            schedule.step()
        losses.append(total)
    return losses, {name: t.full_value().numpy() for name, t in net.state_dict().items()}


def assert_near(found, want, tolerance=1e-4):
    (losses, state), (want_losses, want_state) = found, want
    np.testing.assert_allclose(losses, want_losses, rtol=tolerance, atol=tolerance)
    assert state.keys() == want_state.keys()
    for name in state:
        np.testing.assert_allclose(state[name], want_state[name], rtol=tolerance, atol=tolerance, err_msg=name)


def run(layout, program):
    dp, pp = LAYOUTS[layout]
    holon.run_ranks(dp * pp, program)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", [Mlp, Gpt])
def test_is_the_whole_batch(model, layout):
    data = batches([8, 15, 20, 21, 29, 31])  # 8, 7, 5, 1, 8, 2 rows

    def program(rank):
        want = train_eager(model, layout, data)
        for micro_batches in (3, 4):
            graph, *found, _ = train_graph(model, layout, data, micro_batches)
            assert_near(found, want)
            assert graph._core.n_signatures == 5

    run(layout, program)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", [Normed, Dropped])
def test_is_eager_micro_batch_by_micro_batch(model, layout):
    data = batches([12, 23, 34, 46, 55])  # 12, 11, 11, 12, 9 rows

    def program(rank):
        want = train_eager(model, layout, data, 3)
        _, *found, _ = train_graph(model, layout, data, 3)
        assert_near(found, want)

    run(layout, program)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zero_bubble"])
@pytest.mark.parametrize("layout", ["pp", "dp x pp"])
def test_schedules(schedule, layout):
    data = batches([8, 15, 18, 25])

    def program(rank):
        _, *found, _ = train_graph(Dropped, layout, data, 4, schedule_name=schedule)
        assert_near(found, train_eager(Dropped, layout, data, 4))

    run(layout, program)


@pytest.mark.parametrize(
    "options",
    [{"zero": 1}, {"zero": 2, "recompute": True}, {"zero": 3}, {"recompute": True}, {"amp": True, "zero": 2}],
    ids=str,
)
@pytest.mark.parametrize("layout", ["dp", "dp x pp"])
def test_options(options, layout):
    data = batches([8, 15, 18, 25])

    def program(rank):
        _, *found, optimizer = train_graph(Gpt, layout, data, 3, **options)
        assert_near(
            found,
            train_eager(Gpt, layout, data, 3, amp=options.get("amp", False)),
            2e-2 if options.get("amp") else 1e-4,
        )
        assert optimizer.state_dict()["state"][0]["step"] == len(data)

    run(layout, program)


@pytest.mark.parametrize("micro_batches", [1, 2, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_last_batches_of_epochs(layout, micro_batches):
    """A DataLoader's last batch is smaller: its signature is compiled once, and state,
    step counters and schedules are one for both."""
    epochs = 3
    x, y = (np.concatenate(parts) for parts in zip(*batches([20])))

    def schedule_of(optimizer):
        return optim.lr_scheduler.CosineAnnealingLR(optimizer, 3 * epochs)

    def program(rank):
        loader = DataLoader(TensorDataset(holon.tensor(x), holon.tensor(y)), batch_size=8)
        data = [(a.numpy(), b.numpy()) for _ in range(epochs) for a, b in loader]
        assert [len(a) for a, _ in data] == [8, 8, 4] * epochs
        want = train_eager(Dropped, layout, data, micro_batches, schedule_of)
        graph, *found, optimizer = train_graph(Dropped, layout, data, micro_batches, schedule_of)
        assert_near(found, want)
        assert graph._core.n_signatures == 2
        assert optimizer.state_dict()["state"][0]["step"] == 3 * epochs
        assert graph._schedulers[0].last_epoch == 3 * epochs

    run(layout, program)


def test_buffers_that_build_binds_anew():
    """Each form of micro-batches is a capture of its own, which begins with the buffers as they were."""

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("sum", holon.zeros(()))

        def forward(self, x):
            self.sum = self.sum + x.sum()
            return x * 2

    class Run(nn.Graph):
        def __init__(self):
            super().__init__()
            self.counting = Counting()
            self.config.set_gradient_accumulation_steps(3, uneven=True)

        def build(self, x):
            return self.counting(x)

    graph = Run()
    for _ in range(2):
        np.testing.assert_array_equal(graph(holon.ones(7, 2)).numpy(), np.full((7, 2), 2, np.float32))
    assert graph.counting.sum.item() == 28


def test_outputs():
    class Predict(nn.Graph):
        def __init__(self):
            super().__init__()
            self.config.set_gradient_accumulation_steps(4, uneven=True)

        def build(self, x):
            return {
                "rows": x * 2,
                "mean": x.mean(),
                "columns": x.mean(0),
                "count": (x > 0).sum(),
                "length": holon.ones_like(x)[:, 0].sum(),
                "plain": 3,
            }

    x = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)
    found = Predict()(holon.tensor(x))
    np.testing.assert_array_equal(found["rows"].numpy(), x * 2)
    assert tuple(found["mean"].shape) == (4,) and tuple(found["columns"].shape) == (4, 3) and found["plain"] == 3
    np.testing.assert_allclose(found["mean"].mean().item(), x.mean(), rtol=1e-5)
    np.testing.assert_allclose(found["columns"].mean(0).numpy(), x.mean(0), rtol=1e-4, atol=1e-6)
    assert found["length"].tolist() == [3, 3, 2, 2]
    np.testing.assert_array_equal(found["count"].numpy(), [(part > 0).sum() for part in np.array_split(x, 4)])


def test_errors_name_the_way_out():
    class Run(nn.Graph):
        def build(self, x, *others):
            return x * 2

    graph = Run()
    graph.config.set_gradient_accumulation_steps(4)
    with pytest.raises(
        ValueError, match=r"which 4 micro-batches do not divide.*set_gradient_accumulation_steps\(4, uneven=True\)"
    ):
        graph(holon.ones(6, 2))
    graph.config.set_gradient_accumulation_steps(4, uneven=True)
    assert graph(holon.ones(6, 2)).shape == (6, 2)
    assert "4 micro-batches, uneven if need be" in repr(graph.config)
    with pytest.raises(ValueError, match="input 1 of the graph has 5 rows and input 0 has 6.*buffer"):
        graph(holon.ones(6, 2), holon.ones(5))
    with pytest.raises(ValueError, match="0; it must be an int of 1 or more"):
        graph.config.set_gradient_accumulation_steps(0, uneven=True)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_running_statistics_of_all_batches_alike(layout, micro_batches):
    """BatchNorm(momentum=None): the share of a batch is 1 / the number of batches,
    which is another one in each step."""

    def model():
        net = Normed()
        for part in net:
            part[1].momentum = None
        return net

    data = batches([12, 23, 34, 46, 55])

    def program(rank):
        want = train_eager(model, layout, data, micro_batches)
        assert want[1]["0.1.num_batches_tracked"] == len(data) * micro_batches
        _, *found, _ = train_graph(model, layout, data, micro_batches)
        assert_near(found, want)

    run(layout, program)
