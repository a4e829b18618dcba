"""Sorting, searching, counting: exactly what the CPU gives."""

import numpy as np
import pytest

import holon as flow

DTYPES = [
    flow.bool,
    flow.uint8,
    flow.int8,
    flow.int32,
    flow.int64,
    flow.float16,
    flow.bfloat16,
    flow.float32,
    flow.float64,
]
ids = str


def values(shape, dtype, special=True):
    """Few different numbers, with what floats have beside them."""
    rng = np.random.default_rng(sum(shape) + 1)
    a = rng.integers(0 if dtype == flow.uint8 else -4, 9, shape).astype("float64")
    if dtype.is_floating_point and special:
        for number in (np.nan, np.inf, -np.inf, -0.0, 0.25):
            a[rng.random(shape) < 0.05] = number
    return flow.tensor(a).to(dtype)


def same(cpu, cuda):
    for a, b in zip(*((r,) if isinstance(r, flow.Tensor) else r for r in (cpu, cuda))):
        assert (b.shape, b.dtype) == (a.shape, a.dtype)
        assert b.device.type == "cuda"
        a, b = (t.to("cpu").to(flow.float64).numpy() for t in (a, b))
        assert np.array_equal(a, b, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=ids)
@pytest.mark.parametrize("descending", [False, True])
def test_sort(dtype, descending, native):
    for shape in [(1,), (7,), (9, 65), (300,)]:
        x = values(shape, dtype)
        with native():
            got = flow.sort(x.cuda(), -1, descending)
        same(flow.sort(x, -1, descending), got)


@pytest.mark.parametrize("dtype", [flow.uint8, flow.float16, flow.bfloat16, flow.float32, flow.int64], ids=ids)
def test_long_rows(dtype, native):
    """One row, and rows that the library sorts together."""
    for shape in [(4400,), (2, 4400), (33, 4100)]:
        x = values(shape, dtype)
        with native():
            up, down = flow.sort(x.cuda(), -1), flow.topk(x.cuda(), 33, -1)
        same(flow.sort(x, -1), up)
        same(flow.topk(x, 33, -1), down)


def test_axes_and_strides(native):
    x = values((6, 5, 7), flow.float32)
    y = x.cuda()
    with native():
        for axis in range(3):
            same(flow.sort(x, axis), flow.sort(y, axis))
            same(flow.topk(x, 3, axis, False), flow.topk(y, 3, axis, False))
        same(flow.sort(x.transpose(0, 2)), flow.sort(y.transpose(0, 2)))
        same(flow.sort(x[1:, ::2], 1), flow.sort(y[1:, ::2], 1))
        same(flow.sort(x[:1].expand(4, 5, 7), 0), flow.sort(y[:1].expand(4, 5, 7), 0))


def test_nothing_to_sort():
    for shape in [(0,), (3, 0), (0, 3), ()]:
        x = flow.zeros(*shape) if shape else flow.tensor(2.0)
        same(flow.sort(x), flow.sort(x.cuda()))
    same(flow.topk(flow.ones(3), 0), flow.topk(flow.ones(3).cuda(), 0))


def test_gradients():
    x = flow.tensor(np.random.default_rng(0).permutation(60).reshape(3, 20).astype("float32"))
    w = flow.randn(3, 20)
    both = []
    for device in ("cpu", "cuda"):
        leaf = x.detach().to(device).requires_grad_()
        (flow.sort(leaf, -1, True)[0] * w.to(device)).sum().backward()
        (flow.topk(leaf, 4)[0] * w[:, :4].to(device)).sum().backward()
        both.append(leaf.grad)
    same(*both)


@pytest.mark.parametrize("dtype", DTYPES, ids=ids)
def test_searching(dtype, native):
    rows, x = flow.sort(values((3, 9), dtype, special=False))[0], values((3, 4), dtype)
    for right in (False, True):
        with native():
            each = flow.searchsorted(rows.cuda(), x.cuda(), right=right)
            one = flow.searchsorted(rows[0].cuda(), x.cuda().transpose(0, 1), right=right, out_int32=True)
        same(flow.searchsorted(rows, x, right=right), each)
        same(flow.searchsorted(rows[0], x.transpose(0, 1), right=right, out_int32=True), one)


@pytest.mark.parametrize("dtype", DTYPES, ids=ids)
def test_picking_out(dtype):
    for shape in [(1,), (2100,), (3, 5, 7), (0,), (2, 0), ()]:
        x = values(shape, dtype) if shape else flow.tensor(1).to(dtype)
        y = x.cuda()
        same(flow.nonzero(x), flow.nonzero(y))
        same(flow.masked_select(x, x != 0), flow.masked_select(y, y != 0))
        same(flow.nonzero(x, as_tuple=True), flow.nonzero(y, as_tuple=True))
    x = values((5, 600), dtype)
    same(flow.nonzero(x.transpose(0, 1)), flow.nonzero(x.cuda().transpose(0, 1)))
    same(x[x != 0], x.cuda()[x.cuda() != 0])


@pytest.mark.slow
def test_picking_out_in_turns():
    """More elements than are picked from at once: first few in the first turn, then some in both, then many."""
    turn = 1 << 24
    n = turn + 5000
    x, z = np.zeros(n, bool), flow.arange(n, dtype=flow.int32)
    for chosen in (slice(0, 3), slice(turn - 1, turn + 2), slice(turn + 7, None)):
        x[chosen] = True
        y = flow.tensor(x).cuda()
        assert np.array_equal(flow.nonzero(y).cpu().numpy()[:, 0], np.flatnonzero(x))
        assert np.array_equal(flow.masked_select(z.cuda(), y).cpu().numpy(), np.flatnonzero(x))


@pytest.mark.parametrize("dtype", DTYPES, ids=ids)
def test_distinct(dtype):
    for shape in [(1,), (2100,), (3, 4, 5), (0,)]:
        x = values(shape, dtype)
        same(
            flow.unique(x, return_inverse=True, return_counts=True),
            flow.unique(x.cuda(), return_inverse=True, return_counts=True),
        )
    x = flow.tensor(np.random.default_rng(0).permutation(3000) // 2).to(dtype)  # many groups
    same(flow.unique(x, return_inverse=True), flow.unique(x.cuda(), return_inverse=True))
    x = values((40, 2), dtype, special=False)
    for axis in (0, 1):
        same(
            flow.unique(x, return_inverse=True, return_counts=True, dim=axis),
            flow.unique(x.cuda(), return_inverse=True, return_counts=True, dim=axis),
        )


@pytest.mark.parametrize("dtype", [flow.uint8, flow.int8, flow.int32, flow.int64], ids=ids)
def test_counting(dtype):
    x = flow.tensor(np.random.default_rng(0).integers(0, 90, 3000)).to(dtype)
    same(flow.bincount(x), flow.bincount(x.cuda()))
    same(flow.bincount(x, minlength=10000), flow.bincount(x.cuda(), minlength=10000))
    for w in (flow.randn(3000), flow.randn(3000, dtype=flow.float64)):
        same(flow.bincount(x, w), flow.bincount(x.cuda(), w.cuda()))


def test_counting_refuses_negative_numbers():
    with pytest.raises(ValueError, match="element -2 at position 1 is negative"):
        flow.bincount(flow.tensor([3, -2, -7]).cuda())


@pytest.mark.parametrize("dtype", [flow.float16, flow.float32, flow.float64], ids=ids)
def test_histogram(dtype):
    x = flow.randn(3000).to(dtype)
    same(flow.histc(x, 10, -1, 1), flow.histc(x.cuda(), 10, -1, 1))
    same(flow.histc(x, 13), flow.histc(x.cuda(), 13))


@pytest.mark.parametrize("dtype", [flow.int32, flow.float16, flow.float32, flow.float64], ids=ids)
def test_middle_elements(dtype):
    for x in (values((9, 30), dtype), values((9, 30), dtype, special=False)):
        y = x.cuda()
        same(flow.median(x), flow.median(y))
        same(flow.median(x, 0), flow.median(y, 0))
        same(flow.median(x, 1, True), flow.median(y, 1, True))
        same(flow.kthvalue(x, 5), flow.kthvalue(y, 5))
        if dtype in (flow.float32, flow.float64):
            q = flow.tensor([0.1, 0.5])
            same(flow.quantile(x, q, 1), flow.quantile(y, q.cuda(), 1))
            same(flow.nanquantile(x, q, 1), flow.nanquantile(y, q.cuda(), 1))
