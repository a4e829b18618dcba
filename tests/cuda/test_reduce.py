"""Reductions and scans on a device against the CPU's."""

import itertools

import numpy as np
import pytest

import holon as flow

DTYPES = ["bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
FLOATS = DTYPES[5:]
TOLERANCE = {"float32": 1e-6, "float64": 1e-13, "float16": 1e-3, "bfloat16": 8e-3}
# Rows, columns, both; whole units and not; enough elements for several parts.
CASES = [
    ((7,), None),
    ((1000, 3), None),
    ((128, 1024), None),
    ((5, 8), 1),
    ((5, 9), 0),
    ((3, 5000), 1),
    ((5000, 3), 0),
    ((4, 6, 8), (0, 2)),
    ((4, 6, 8), 1),
    ((2, 3, 4, 5), (1, 3)),
    ((6000, 40), 0),
    ((2, 1, 3), (0, 1, 2)),
    ((300, 2, 500), (0, 2)),
    # By vectors: a block's columns, fewer and more of them; one part and several.
    ((7, 256), 0),
    ((1000, 136), 0),
    ((40, 30, 264), (0, 1)),
    ((3, 130, 4, 66), (0, 1)),
]


def draw(shape, dtype, seed=0):
    x = np.random.default_rng(seed).uniform(-3, 3, shape)
    if dtype in ("uint8", "int8", "int32", "int64", "bool"):
        x = np.round(np.abs(x) if dtype in ("uint8", "bool") else x)
    return flow.tensor(x, dtype=flow.float64).to(getattr(flow, dtype))


def same(got, want, scale=1.0):
    assert got.device.type == "cuda" and got.dtype == want.dtype and got.shape == want.shape
    name = str(want.dtype).split(".")[-1]
    a, b = got.cpu(), want
    if name not in TOLERANCE:
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    else:
        np.testing.assert_allclose(
            a.double().numpy(), b.double().numpy(), rtol=TOLERANCE[name], atol=TOLERANCE[name] * scale
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums(native, dtype):
    for shape, dim in CASES:
        x = draw(shape, dtype)
        with native():
            y = flow.sum(x.cuda()) if dim is None else flow.sum(x.cuda(), dim)
        # Sums that cancel: to the size of what is added up.
        same(y, flow.sum(x) if dim is None else flow.sum(x, dim), np.sqrt(x.numel() / max(y.numel(), 1)))
        if dtype in FLOATS and dim is not None:
            with native():
                y = flow.mean(x.cuda(), dim)
            same(y, flow.mean(x, dim))


@pytest.mark.parametrize("dtype", DTYPES)
def test_extremes(native, dtype):
    for (shape, dim), name in itertools.product(CASES, ["amax", "amin", "any", "all"]):
        run, x = getattr(flow, name), draw(shape, dtype)
        args = () if dim is None else (dim,)
        if name in ("any", "all") and not isinstance(dim, (int, type(None))):
            continue
        with native():
            y = run(x.cuda(), *args)
        same(y, run(x, *args))


@pytest.mark.parametrize("dtype", ["int32", "float16", "float32", "float64"])
def test_products_and_norms(native, dtype):
    for shape, dim in (((7,), None), ((5, 9), 0), ((5, 9), 1), ((40, 3), 0)):
        args = () if dim is None else (dim,)
        x = draw(shape, dtype, 3)
        with native():
            y = flow.prod(x.cuda(), *args)
        want = flow.prod(x, *args)
        same(y, want, 0)
    if dtype.startswith("float") and dtype != "float16":
        for order in (1, 2, float("inf"), float("-inf")):
            for shape, dim in (((300, 7), 0), ((7, 300), 1), ((200, 200), None)):
                x = draw(shape, dtype)
                same(flow.linalg.vector_norm(x.cuda(), order, dim), flow.linalg.vector_norm(x, order, dim))


@pytest.mark.parametrize("dtype", DTYPES)
def test_places(native, dtype):
    for shape, dim in (
        ((7,), 0),
        ((5, 64), 1),
        ((64, 5), 0),
        ((3, 40, 9), 1),
        ((2, 9000), 1),
        ((9000, 40), 0),
        ((100000,), 0),
    ):
        x = draw(shape, dtype)
        for name in ("argmax", "argmin"):
            with native():
                y = getattr(flow, name)(x.cuda(), dim)
            same(y, getattr(flow, name)(x, dim))
    if dtype in FLOATS:
        x = draw((3, 50), dtype)
        x[0, 7] = x[0, 9] = x[2, 49] = float("nan")
        same(flow.argmax(x.cuda(), 1), flow.argmax(x, 1))
        same(flow.argmin(x.cuda(), 1), flow.argmin(x, 1))
        same(flow.amax(x.cuda(), 1), flow.amax(x, 1))
        same(flow.amin(x.cuda(), 0), flow.amin(x, 0))


def test_strides(native):
    x = draw((6, 40, 24), "float32")
    takes = (
        lambda t: t.permute(2, 0, 1),
        lambda t: t[:, 3:30, 1:],
        lambda t: t[:, ::3],
        lambda t: t[:, :1].expand(6, 9, 24),
        lambda t: t[0, 0, 0],
    )
    for take in takes:
        for dim in [None, *range(take(x).ndim)]:
            args = () if dim is None else (dim,)
            for name in ("sum", "amax", "argmax"):
                with native():
                    y = getattr(flow, name)(take(x.cuda()), *args)
                want = getattr(flow, name)(take(x), *args)
                # A sum of n terms up to 3 in any order: the rounding of each addition, to the size of the sum so far.
                same(y, want, 3 * take(x).numel() / max(y.numel(), 1) / 16 if name == "sum" else 1)


def test_nothing():
    for shape, dim in (((0, 3), 0), ((3, 0), 0), ((0,), 0)):
        x = flow.zeros(*shape)
        same(flow.sum(x.cuda(), dim), flow.sum(x, dim))
        same(flow.prod(x.cuda(), dim), flow.prod(x, dim))
        same(flow.all(x.cuda(), dim), flow.all(x, dim))
    with pytest.raises(ValueError, match="elements"):
        flow.amax(flow.zeros(3, 0).cuda(), 1)


def test_long_sums_do_not_drift():
    x = flow.full((3_000_000,), 0.1)
    assert abs(flow.sum(x.cuda()).cpu().item() / 3e5 - 1) < 1e-6


LINES = [
    ((7,), 0),
    ((3, 5), 1),
    ((3, 50), 0),
    ((2, 2000), 1),
    ((2, 70, 9), 1),
    ((5000,), 0),
    ((2, 40, 40), 1),
    ((300, 4), 1),
    ((9000, 2), 0),
    ((0, 3), 1),
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_scans(native, dtype):
    for shape, dim in LINES:
        x = draw(shape, dtype)
        for name in ("cumsum", "cummax", "cummin", "logcumsumexp"):
            if name == "logcumsumexp" and dtype not in FLOATS:
                continue
            run = getattr(flow, name)
            with native():
                y = run(x.cuda(), dim)
            want = run(x, dim)
            for a, b in zip(*([y], [want]) if name in ("cumsum", "logcumsumexp") else (y, want)):
                same(a, b, np.sqrt(x.shape[dim]))
    for shape, dim in (((7,), 0), ((3, 9), 1), ((40, 3), 0), ((2, 1, 300), 2)):
        x = (
            draw(shape, dtype)
            if shape[dim] < 100
            else draw(shape, dtype) * 0.3
            if dtype in FLOATS
            else draw(shape, dtype)
        )
        with native():
            y = flow.cumprod(x.cuda(), dim)
        same(y, flow.cumprod(x, dim), 1e-3)


@pytest.mark.parametrize("dtype", FLOATS)
def test_gradients_of_scans(native, dtype):
    for (shape, dim), name in itertools.product(
        [((7,), 0), ((3, 50), 1), ((40, 12), 0), ((6000,), 0)], ["logcumsumexp", "cumprod"]
    ):
        x = draw(shape, dtype) if name == "logcumsumexp" else draw(shape, dtype, 4) / 2.5
        if name == "cumprod":
            x.flatten()[3] = 0.0
        dy = draw(shape, dtype, 1)
        grads = []
        for device in ("cpu", "cuda"):
            a = x.detach().to(device).requires_grad_()
            y = getattr(flow, name)(a, dim)
            with native():
                (g,) = flow.autograd.grad(y, a, dy.to(device))
            grads.append(g)
        same(grads[1], grads[0], 4)


def test_infinities_in_scans():
    inf, nan = float("inf"), float("nan")
    x = flow.tensor([[-inf, -inf, 1.0, 2.0, -inf], [1.0, inf, 2.0, -inf, 0.0], [1.0, nan, 2.0, 5.0, nan], [-inf] * 5])
    for name in ("logcumsumexp", "cumsum"):
        same(getattr(flow, name)(x.cuda(), 1), getattr(flow, name)(x, 1))
    for name in ("cummax", "cummin"):
        for got, want in zip(getattr(flow, name)(x.cuda(), 1), getattr(flow, name)(x, 1)):
            same(got, want)
