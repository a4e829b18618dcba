"""Attention over a sequence that is split over ranks: results and gradients are those of one rank."""

import numpy as np
import pytest

import holon as flow
from holon import nn

S2 = flow.sbp.split(2)
WAYS = ["ring", "heads", "gather"]


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    monkeypatch.setenv("HOLON_SEQUENCE_ATTENTION", request.param)
    return request.param


@pytest.fixture
def ring(monkeypatch):
    monkeypatch.setenv("HOLON_SEQUENCE_ATTENTION", "ring")


def drawn(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def attend(tensor, arrays, dtype, graph=False, seed=None, **options):
    """The result and the gradients of q, k and v, where the result's gradient is arrays[3]."""
    q, k, v, dy = (tensor(a.astype(dtype)) for a in arrays)
    for t in (q, k, v):
        t.requires_grad_()
    if seed is not None:
        flow.manual_seed(seed)

    class Step(nn.Graph):
        def build(self, q, k, v, dy):
            y = flow.scaled_dot_product_attention(q, k, v, **options)
            return (y, *flow.autograd.grad((y * dy).sum(), (q, k, v)))

    if graph:
        outs = Step()(q, k, v, dy)
    else:
        y = flow.scaled_dot_product_attention(q, k, v, **options)
        (y * dy).sum().backward()
        outs = [y, q.grad, k.grad, v.grad]
    return [o.detach() for o in outs]


def whole(t):
    return t.to_global(t.placement, [flow.sbp.broadcast] * len(t.sbp)).to_local().numpy()


def compare(n, arrays, dtype="float64", make=lambda tensor: {}, graph=False, **options):
    """make(tensor): options that are tensors, alike on all ranks."""
    tolerance = {"float64": 1e-10, "float32": 2e-5}[dtype]
    local = {**options, **make(lambda a, sbp=None: flow.tensor(a))}
    wanted = [o.numpy() for o in attend(flow.tensor, arrays, dtype, **local)]

    def run(rank):
        placement = flow.placement("cpu", list(range(n)))

        def tensor(a, sbp=S2):
            return flow.tensor(a, placement=placement, sbp=sbp)

        outs = attend(tensor, arrays, dtype, graph, **options, **make(tensor))
        assert outs[0].sbp == (S2,)
        return [whole(o) for o in outs]

    for found in flow.run_ranks(n, run):
        for name, w, f in zip(("y", "dq", "dk", "dv"), wanted, found, strict=True):
            np.testing.assert_allclose(f, w, rtol=tolerance, atol=tolerance, err_msg=name)


def qkv(heads=4, shared=4, length=13, keys=None, width=5, value=3, batch=2):
    keys = length if keys is None else keys
    return [
        drawn(0, batch, heads, length, width),
        drawn(1, batch, shared, keys, width),
        drawn(2, batch, shared, keys, value),
        drawn(3, batch, heads, length, value),
    ]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [2, 4])
def test_every_way(way, n, causal, dtype):
    compare(n, qkv(), dtype, is_causal=causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 7, 130])
def test_uneven_parts_and_empty_ones(ring, length, causal):
    compare(3, qkv(length=length), is_causal=causal)


@pytest.mark.parametrize("length, keys", [(5, 11), (11, 5), (2, 9)])
@pytest.mark.parametrize("causal", [False, True])
def test_more_keys_than_queries(ring, length, keys, causal):
    compare(3, qkv(length=length, keys=keys), is_causal=causal)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("length", [30, 1001])
def test_zigzag(ring, n, length, dtype):
    """At 1001 tokens a balanced share pays, whatever the machine; both are compared with one rank."""
    compare(
        n, qkv(length=length, heads=2, shared=1, batch=1, width=16, value=16), dtype, is_causal=True, enable_gqa=True
    )


@pytest.mark.parametrize("n", [2, 3, 4])
def test_all_ranks_choose_the_same_shares(ring, n):
    """Around the length from which a balanced share pays, which no rank may judge by its own part."""
    for length in range(120, 260):
        compare(n, qkv(length=length, heads=1, shared=1, batch=1, width=4, value=4), is_causal=True)


@pytest.mark.parametrize("window", [1, 3, 64, 200])
def test_windows(ring, window):
    compare(4, qkv(length=300, heads=2, shared=2, batch=1), is_causal=True, window=window)
    compare(3, qkv(length=300, heads=2, shared=2, batch=1), "float32", is_causal=True, window=window)


def documents(length, batch, seed=5):
    """Ids of documents of random lengths, which do not have to grow."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(batch):
        ids = np.repeat(rng.permutation(length), rng.integers(1, max(2, length // 3), length))
        rows.append(ids[:length])
    return np.array(rows)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [13, 400])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_packed_documents(way, length, causal, dtype):
    ids = documents(length, 2)
    compare(
        2, qkv(length=length), dtype, lambda tensor: {"document_ids": tensor(ids, flow.sbp.split(1))}, is_causal=causal
    )


def test_documents_are_those_of_a_mask():
    ids = documents(300, 2)
    arrays = qkv(length=300)
    see = (ids[:, None, :, None] == ids[:, None, None, :]) & np.tri(300, dtype=bool)
    for dtype in ("float32", "float64"):
        by_mask = attend(flow.tensor, arrays, dtype, attn_mask=flow.tensor(see))
        by_ids = attend(flow.tensor, arrays, dtype, document_ids=flow.tensor(ids), is_causal=True)
        for a, b in zip(by_mask, by_ids, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("window", [1, 7, 130])
def test_a_window_is_that_of_a_mask(window):
    arrays = qkv(length=300)
    see = np.tri(300, dtype=bool) & ~np.tri(300, k=-window, dtype=bool)
    for dtype in ("float32", "float64"):
        by_mask = attend(flow.tensor, arrays, dtype, attn_mask=flow.tensor(see))
        by_window = attend(flow.tensor, arrays, dtype, window=window, is_causal=True)
        for a, b in zip(by_mask, by_window, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_padding_of_keys(way, causal):
    """Of one row nothing is seen: zeros."""
    see = np.random.default_rng(7).random((2, 1, 1, 13)) < 0.7
    see[1] = False
    compare(4, qkv(), make=lambda tensor: {"attn_mask": tensor(see, flow.sbp.split(3))}, is_causal=causal)


@pytest.mark.parametrize("shape", [(13, 13), (2, 1, 13, 13), (1, 4, 13, 13)])
def test_masks_with_rows_for_queries(way, shape):
    see = np.random.default_rng(8).random(shape) < 0.6
    compare(4, qkv(), make=lambda tensor: {"attn_mask": tensor(see, flow.sbp.broadcast)})
    added = np.random.default_rng(9).standard_normal(shape)
    compare(4, qkv(), make=lambda tensor: {"attn_mask": tensor(added, flow.sbp.split(len(shape) - 2))})


@pytest.mark.parametrize("shared", [1, 2])
def test_grouped_queries(ring, shared):
    compare(3, qkv(shared=shared), is_causal=True, enable_gqa=True)


@pytest.mark.parametrize("length", [13, 1001])
def test_dropout_drops_what_one_rank_drops(way, length):
    compare(2, qkv(length=length), "float32", is_causal=True, dropout_p=0.4, seed=11)


def test_halves_are_added_in_float32(ring):
    arrays = [a.astype("f4") for a in qkv(length=200, width=16, value=16)]

    def run(rank):
        def tensor(a):
            return flow.tensor(a, placement=flow.placement("cpu", [0, 1, 2, 3]), sbp=S2).to(flow.bfloat16).detach()

        return [whole(o.to(flow.float32)) for o in attend(tensor, arrays, "float32", is_causal=True)]

    def tensor(a):
        return flow.tensor(a).to(flow.bfloat16).detach()

    wanted = [o.to(flow.float32).numpy() for o in attend(tensor, arrays, "float32", is_causal=True)]
    for found in flow.run_ranks(4, run):
        for w, f in zip(wanted, found, strict=True):
            np.testing.assert_allclose(f, w, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("length", [13, 600])
@pytest.mark.parametrize("n", [2, 3])
def test_in_a_graph(ring, n, length):
    compare(n, qkv(length=length), graph=True, is_causal=True)


def test_in_a_grid(ring):
    """Rows, the sequence and heads are split, each by an axis of ranks."""
    arrays = qkv(length=90)
    wanted = [o.numpy() for o in attend(flow.tensor, arrays, "float64", is_causal=True)]
    sbp = (flow.sbp.split(0), S2, flow.sbp.split(1))

    def run(rank):
        placement = flow.placement("cpu", np.arange(8).reshape(2, 2, 2).tolist())
        outs = attend(lambda a: flow.tensor(a, placement=placement, sbp=sbp), arrays, "float64", is_causal=True)
        assert outs[0].sbp == sbp
        return [whole(o) for o in outs]

    for found in flow.run_ranks(8, run):
        for w, f in zip(wanted, found, strict=True):
            np.testing.assert_allclose(f, w, rtol=1e-10, atol=1e-10)


def test_the_sequence_split_by_two_axes(ring):
    arrays = qkv(length=90)
    wanted = [o.numpy() for o in attend(flow.tensor, arrays, "float64", is_causal=True)]

    def run(rank):
        placement = flow.placement("cpu", [[0, 1], [2, 3]])
        outs = attend(lambda a: flow.tensor(a, placement=placement, sbp=(S2, S2)), arrays, "float64", is_causal=True)
        return [whole(o) for o in outs]

    for found in flow.run_ranks(4, run):
        for w, f in zip(wanted, found, strict=True):
            np.testing.assert_allclose(f, w, rtol=1e-10, atol=1e-10)


def test_results_are_the_same_bits_each_time(ring):
    arrays = qkv(length=500)

    def run(rank):
        placement = flow.placement("cpu", [0, 1, 2])

        def tensor(a):
            return flow.tensor(a, placement=placement, sbp=S2)

        a, b = (attend(tensor, arrays, "float32", is_causal=True) for _ in range(2))
        return all((whole(x) == whole(y)).all() for x, y in zip(a, b, strict=True))

    assert all(flow.run_ranks(3, run))


def test_gradients_by_differences(ring):
    """Of a sum of squares, in each direction of a few elements on each rank."""
    arrays = qkv(length=7, heads=2, shared=2, batch=1)[:3]

    def run(rank):
        placement = flow.placement("cpu", [0, 1, 2])

        def loss(arrays, grads=False):
            q, k, v = (flow.tensor(a, placement=placement, sbp=S2, requires_grad=grads) for a in arrays)
            y = flow.scaled_dot_product_attention(q, k, v, is_causal=True, window=4)
            total = y.square().sum()
            if not grads:
                return total.item()
            total.backward()
            return [whole(t.grad) for t in (q, k, v)]

        grads = loss(arrays, grads=True)
        for which, gradient in enumerate(grads):
            for at in [(0, 0, 0, 0), (0, 1, 3, 1), (0, 1, 6, 2), (0, 0, 5, 0)]:
                ends = []
                for step in (1e-5, -1e-5):
                    moved = [a.copy() for a in arrays]
                    moved[which][at] += step
                    ends.append(loss(moved))
                np.testing.assert_allclose(gradient[at], (ends[0] - ends[1]) / 2e-5, rtol=1e-6, atol=1e-8)

    flow.run_ranks(3, run)


def test_errors():
    q = flow.ones(1, 2, 4, 8)
    for options, message in [
        ({"window": 2}, "window is 2 and is_causal false"),
        ({"window": -1, "is_causal": True}, "window is -1"),
        ({"document_ids": flow.zeros(1, 3, dtype=flow.int64)}, "must be [batch or 1, length]"),
        ({"attn_mask": flow.ones(4, 4), "is_causal": True}, "a row for each query"),
    ]:
        with pytest.raises(ValueError) as e:
            flow.scaled_dot_product_attention(q, q, q, **options)
        assert message in str(e.value)
    with pytest.raises(TypeError, match="must be integers"):
        flow.scaled_dot_product_attention(q, q, q, document_ids=flow.zeros(1, 4))


def test_settings_that_are_wrong(monkeypatch):
    def run(rank):
        q = flow.ones(1, 3, 4, 8, placement=flow.placement("cpu", [0, 1]), sbp=S2)
        with pytest.raises(ValueError) as e:
            flow.scaled_dot_product_attention(q, q, q)
        return str(e.value)

    monkeypatch.setenv("HOLON_SEQUENCE_ATTENTION", "tree")
    assert "it is ring, heads, gather" in flow.run_ranks(2, run)[0]
    monkeypatch.setenv("HOLON_SEQUENCE_ATTENTION", "heads")
    assert "do not divide the 3 heads" in flow.run_ranks(2, run)[1]


def test_what_the_ring_reads_is_an_event(ring):
    """With its exact bytes: without a causal mask each rank reads the keys and values of all others. No policy refuses
    it, as no conversion would avoid it."""
    arrays = [drawn(i, 2, 3, 8, 4).astype("float32") for i in range(3)]

    def run(rank):
        placement = flow.placement("cpu", [0, 1])
        q, k, v = (flow.tensor(a).to_global(placement, flow.sbp.broadcast).to_global(sbp=S2) for a in arrays)
        flow.boxing.boxing_policy("raise")
        flow._C.reset_boxing_counters()
        flow.scaled_dot_product_attention(q, k, v)
        counters, events = flow.boxing.counters(), flow.boxing.events()
        flow.boxing.boxing_policy("silent")
        return counters, [(e["op"], e["from"], e["to"], e["bytes"], e["inside"]) for e in events]

    own = 2 * 3 * 4 * 4 * 4
    for counters, events in flow.run_ranks(2, run):
        assert counters == {"events": 1, "moves": 1, "bytes": 2 * own, "parameters": 0}
        ((op, start, end, n, inside),) = events
        assert op == "attention_flash" and "S(2)" in start and "B" in end and n == 2 * own and inside
