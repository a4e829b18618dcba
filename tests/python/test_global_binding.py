"""placement, sbp, global tensors and ranks from Python."""

import pickle
import threading
import time

import numpy as np
import pytest
from harness import ranks

import holon
from holon import _C

ops, tensor, sbp, placement = _C.ops, _C.tensor, _C.sbp, _C.placement
B, P = sbp.broadcast, sbp.partial_sum
S = sbp.split


def test_sbp_values():
    assert (
        S(0) == S(dim=0) == S(axis=0) != S(1) and B == B() and P() == P and B != P and type(B) is type(S(0)) is sbp.sbp
    )
    assert [repr(s) for s in (S(1), B, P)] == ["holon.sbp.split(dim=1)", "holon.sbp.broadcast", "holon.sbp.partial_sum"]
    assert len({S(0), S(0), S(1), B, P(), P}) == 4 and S(2).dim == 2 and B.dim is None and P.is_partial_sum
    assert all(pickle.loads(pickle.dumps(s)) == s for s in (S(1), B, P)) and S(0) != "S(0)" and B is not None
    for call, kind, text in [
        (lambda: S(), TypeError, "takes one tensor axis"),
        (lambda: S("a"), TypeError, "dim must be int, got str 'a'"),
        (lambda: S(-1), RuntimeError, "Split axis must not be negative"),
        (lambda: S(99), RuntimeError, "out of range"),
        (lambda: S(0)(), TypeError, "is a value"),
    ]:
        with pytest.raises(kind, match=text):
            call()


def test_placements():
    def check(rank):
        p, grid = placement("cpu", [0, 1]), placement(type="cpu", ranks=[[0, 1], [2, 3]])
        assert p == placement("cpu", (0, 1)) == placement("cpu", range(2)) == placement(
            "cpu", np.array([0, 1])
        ) and hash(p) == hash(placement("cpu", [0, 1]))
        assert p != placement("cpu", [1, 0]) and p != grid and p != "cpu" and p is not None
        assert (
            repr(p) == 'holon.placement(type="cpu", ranks=[0, 1])'
            and repr(grid) == 'holon.placement(type="cpu", ranks=[[0, 1], [2, 3]])'
        )
        assert (
            p.type == "cpu"
            and p.ranks.tolist() == [0, 1]
            and isinstance(grid.ranks, np.ndarray)
            and grid.hierarchy == (2, 2)
        )
        assert placement.all("cpu") == placement("cpu", [0, 1, 2, 3]) and placement("cpu", 2).ranks.tolist() == [2]
        assert pickle.loads(pickle.dumps(grid)) == grid and p.index_of(1) == 1 and p.index_of(3) == -1
        for wrong, kind, text in [
            ([], ValueError, "empty"),
            ([0, 0], ValueError, "twice"),
            ([4], ValueError, "rank 4 is not in the world of 4"),
            ([-1], ValueError, "negative"),
            ("0", TypeError, "got str '0'"),
            ([[0], [1, 2]], ValueError, "differ in length"),
            ([0, [1]], ValueError, "differ in length|same depth"),
            ([0.5], TypeError, "got float"),
            ({0, 1}, TypeError, "got set"),
        ]:
            with pytest.raises(kind, match=text):
                placement("cpu", wrong)
        with pytest.raises(Exception, match="tpu"):
            placement("tpu", [0])
        with pytest.raises(TypeError, match="type must be"):
            placement(0, [0])
        return True

    assert _C.run_ranks(4, check) == [True] * 4


def test_global_tensors_from_data():
    data = np.arange(10, dtype=np.float32).reshape(5, 2)

    def check(rank):
        p = placement("cpu", [0, 1])
        s = tensor(data, placement=p, sbp=S(0))
        assert (
            s.is_global
            and s.shape == (5, 2)
            and s.sbp == (S(0),)
            and s.placement == p
            and repr(s.sbp) == "(holon.sbp.split(dim=0),)"
        )
        assert s.to_local().tolist() == (data[:3] if rank == 0 else data[3:]).tolist()
        assert tensor(data, placement=p, sbp=B).to_local().tolist() == data.tolist()
        part = tensor(data, placement=p, sbp=P).to_local().tolist()
        assert part == (data if rank == 0 else np.zeros_like(data)).tolist()
        for kind in (S(0), S(1), B, P):
            t = tensor(data.tolist(), placement=p, sbp=[kind])
            assert t.numpy().tolist() == data.tolist() and t.tolist() == data.tolist()
        with pytest.raises(RuntimeError, match="Only local tensors have 'device'"):
            s.device
        with pytest.raises(ValueError, match="only placement was given"):
            tensor(data, placement=p)
        with pytest.raises(ValueError, match="both placement and device"):
            tensor(data, placement=p, sbp=B, device="cpu")
        with pytest.raises(RuntimeError, match="out of range"):
            tensor(data, placement=p, sbp=S(2))
        with pytest.raises(TypeError, match="sbp must be an sbp such as"):
            tensor(data, placement=p, sbp="S(0)")
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(s)
        return s.numpy().sum()

    assert _C.run_ranks(2, check) == [45.0, 45.0]


def test_conversions_of_global_tensors():
    def check(rank):
        p = placement.all("cpu")
        x = tensor([[1.0, 2.0], [3.0, 4.0]], placement=p, sbp=S(0))
        assert (
            x.to_global(p, S(0)) is x
            and x.to_global(sbp=S(0)) is x
            and x.to(p, S(0)) is x
            and x.to("cpu") is x
            and x.cpu() is x
        )
        assert (
            x.to_global(sbp=B).sbp == (B,)
            and x.to(placement=p, sbp=S(1)).sbp == (S(1),)
            and x.to(_C.float64).sbp == (S(0),)
        )
        assert x.to_global(p, S(0), copy=True) is not x
        assert (x + 1).sbp == (S(0),) and (x * 2).tolist() == [[2, 4], [6, 8]]
        assert x.new_zeros(4).is_global and x.new_zeros(4, device="cpu").is_local
        local = tensor([float(rank)])
        g = local.to_global(p, S(0))
        assert g.tolist() == [0.0, 1.0] and g.to_local().tolist() == [float(rank)]
        with pytest.raises(RuntimeError, match="inconsistent attributes"):
            x + local
        with pytest.raises(RuntimeError, match="needs both placement and sbp"):
            local.to_global(p)
        with pytest.raises(RuntimeError, match="Expected global tensor for to_local but got local tensor"):
            local.to_local()
        return float(x.sum())

    assert _C.run_ranks(2, check) == [10.0, 10.0]


def test_indexing_of_global_tensors():
    a = np.arange(20, dtype=np.float32).reshape(5, 4)
    keys = [
        0,
        4,
        (slice(None), 1),
        (slice(1, 4), slice(0, 4, 2)),
        (Ellipsis, -1),
        (slice(3, 5),),
        [4, 0, 4],
        (slice(None), [1, 1]),
        a > 7,
    ]

    def check(rank):
        p = placement.all("cpu")
        for kind in (S(0), S(1), B, P):
            for key in keys:
                assert tensor(a, placement=p, sbp=kind)[key].tolist() == a[key].tolist(), (kind, key)
            for key in keys:
                x, wanted = tensor(a, placement=p, sbp=kind), a.copy()
                wanted[key] = -1
                x[key] = -1
                assert x.tolist() == wanted.tolist() and x.sbp == (kind,), (kind, key)
                value = np.arange(a[key].size).reshape(a[key].shape)
                if not isinstance(key, list) and "[1, 1]" not in str(key):
                    wanted[key] = value
                    x[key] = tensor(value, placement=p, sbp=S(0) if value.ndim else B)
                    assert x.tolist() == wanted.tolist(), (kind, key)
        # on ranks outside of the placement too
        part = placement("cpu", [2, 0])
        x = tensor(a, placement=part, sbp=S(0))
        x[[3, 1], 2:] = tensor([[1.0], [2.0]], placement=part, sbp=B)
        wanted = a.copy()
        wanted[[3, 1], 2:] = [[1], [2]]
        assert x.tolist() == wanted.tolist()
        return True

    assert _C.run_ranks(3, check) == [True] * 3


def test_gradients_of_assignment_to_global_tensors():
    a = np.arange(20, dtype=np.float32).reshape(5, 4)

    def gradients(p, xs, vs):
        where = {"placement": p, "sbp": xs} if p else {}
        x = tensor(a, requires_grad=True, **where)
        v = tensor([[1.0, 2.0]], requires_grad=True, **({"placement": p, "sbp": vs} if p else {}))
        y = x * 2
        y[[4, 1], 1:3] = v
        y[0] = 7
        y[:, 3] = y[:, 0]
        (y * y).sum().backward()
        return x.grad.tolist(), v.grad.tolist(), y.tolist()

    truth = gradients(None, None, None)

    def check(rank):
        p = placement.all("cpu")
        return all(gradients(p, xs, vs) == truth for xs in (S(0), S(1), B, P) for vs in (S(0), S(1), B, P))

    assert truth[0][0] == [0] * 4 and truth[1] == [[4, 8]]
    assert _C.run_ranks(3, check) == [True] * 3


def test_text_of_global_tensors():
    def check(rank):
        x = tensor([1.0, 2.0, 3.0], placement=placement("cpu", [0, 1]), sbp=S(0))
        return repr(x), rank

    texts = _C.run_ranks(2, check)
    where = 'placement=holon.placement(type="cpu", ranks=[0, 1]), sbp=(holon.sbp.split(dim=0),), dtype=holon.float32)'
    assert texts[0][0] == f"tensor([1., 2.], shape=[3], part=rank 0, {where}"
    assert texts[1][0] == f"tensor([3.], shape=[3], part=rank 1, {where}"
    before = _C.get_printoptions()
    try:
        _C.set_printoptions(gather=True)
        # As OneFlow: whole, and what does not fit into 80 columns on a line of its own.
        broken = where.replace(", sbp=", ",\n       sbp=")
        assert {t for t, _ in _C.run_ranks(2, check)} == {f"tensor([1., 2., 3.], {broken}"}
    finally:
        _C.set_printoptions(**before)


def test_run_ranks_returns_results_and_raises_the_first_exception():
    assert _C.run_ranks(3, lambda r: (r, _C.rank(), _C.world_size(), _C.local_rank())) == [
        (r, r, 3, r) for r in range(3)
    ]
    assert _C.world_size() == 1 and not _C.ranks_are_threads()
    mine = KeyError("rank 1's own")

    def fails(rank):
        if rank == 1:
            raise mine
        _C.barrier()

    with pytest.raises(KeyError) as e:
        _C.run_ranks(2, fails)
    assert e.value is mine
    assert _C.run_ranks(2, lambda r: r) == [0, 1]
    with pytest.raises(ValueError, match="0 ranks"):
        _C.run_ranks(0, lambda r: r)
    with pytest.raises(TypeError, match="takes a function"):
        _C.run_ranks(1, 3)


def test_python_runs_on_while_ranks_wait():
    ticks, stop = [], threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(1)
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()

    def late(rank):
        if rank == 0:
            time.sleep(0.2)
        _C.barrier()

    _C.run_ranks(2, late)
    stop.set()
    thread.join()
    assert len(ticks) > 20


def test_ranks_have_their_own_state():
    def check(rank):
        _C.manual_seed(rank)
        before = _C.set_grad_enabled(rank == 0)
        _C.barrier()
        state = _C.get_rng_state()
        _C.set_rng_state(state)
        return _C.initial_seed(), _C.is_grad_enabled(), before, _C.get_rng_state() == state

    assert _C.run_ranks(2, check) == [(0, True, True, True), (1, False, True, True)]
    assert _C.is_grad_enabled()


def test_boxing_is_explained_and_counted():
    def check(rank):
        p = placement.all("cpu")
        x = tensor(np.ones((4, 4), np.float32), placement=p, sbp=S(0))
        text = _C.explain(x, sbp=B)
        _C.reset_boxing_counters()
        y = x + tensor(np.ones((4, 4), np.float32), placement=p, sbp=S(1))
        counters, events = _C.boxing_counters(), _C.boxing_events()
        with _C.boxing_policy("raise"):
            assert _C.get_boxing_policy() == "raise"
            with pytest.raises(RuntimeError):
                x + tensor(np.ones((4, 4), np.float32), placement=p, sbp=S(1))
        assert _C.get_boxing_policy() == "silent"
        with pytest.raises(ValueError):
            _C.boxing_policy("loud")
        return (
            "all_gather" in text,
            y.sbp[0].is_split,
            counters["moves"] == 1 and counters["bytes"] > 0,
            events[-1]["op"],
            events[-1]["shape"],
        )

    assert _C.run_ranks(2, check) == [(True, True, True, "add", (4, 4))] * 2
    with pytest.raises(RuntimeError, match="the tensor is local"):
        _C.explain(tensor([1]))


def test_ranks_as_threads_may_import_numpy_at_once(tmp_path):
    program = tmp_path / "first.py"
    program.write_text("import holon\nprint(sum(holon.run_ranks(8, lambda rank: int(holon.ones(2).numpy().sum()))))\n")
    done = ranks.run(program, timeout=60)
    assert done.stdout.strip() == "16", done.stderr


def test_parts_that_nobody_compares_agree_all_the_same():
    """to_global(check_meta=False) made tensors whose shapes and dtypes differed between ranks."""

    def program(rank):
        everywhere = holon.placement.all("cpu")

        def whole(part, sbp, placement=everywhere):
            return part.to_global(placement, sbp, check_meta=False)

        for sbp in (holon.sbp.split(0), holon.sbp.broadcast, holon.sbp.partial_sum):
            assert whole(holon.ones(2, 3), sbp).shape[1] == 3
            with pytest.raises(RuntimeError, match=r"(?s)check_meta.*\[2, 4\].*\[2, 5\]"):
                whole(holon.ones(2, 4 + rank), sbp)
            # Rank 0 has what it had before and goes on; what it calls next finds the others asking.
            with pytest.raises(RuntimeError, match=r"\[2, 6\]"):
                whole(holon.ones(2, 6 if rank else 3), sbp).sum().item()
        with pytest.raises(RuntimeError, match=r"(?s)\[3\].*\[4\]"):  # a rank outside would have another shape
            whole(holon.ones(3 + rank), holon.sbp.split(0), holon.placement("cpu", [0]))

    holon.run_ranks(2, program)


def test_data_that_should_be_alike_is_compared_on_request(monkeypatch):
    monkeypatch.setenv("HOLON_CHECK", "1")

    def program(rank):
        layout = {"placement": holon.placement.all("cpu"), "sbp": holon.sbp.split(0)}
        assert holon.tensor([1.0, 2.0, 3.0], **layout).sum().item() == 6
        with pytest.raises(RuntimeError, match=r"float32 \[2\], rank 1 float32 \[3\]"):
            holon.tensor([1.0] * (2 + rank), **layout)
        with pytest.raises(RuntimeError, match="values on rank 1 differ"):
            holon.tensor([1.0, float(rank)], **layout)
        # Alone on its placement, a rank has nobody to agree with.
        assert holon.tensor([rank], placement=holon.placement("cpu", [1]), sbp=holon.sbp.split(0)).shape == (1,)

    holon.run_ranks(2, program)
