"""Element-wise kernels on a device: what the CPU gives, for dtypes, layouts,
broadcasting and numbers beside tensors."""

import math

import numpy as np
import pytest

import holon as flow

RNG = np.random.default_rng(7)
FLOATS = ["float32", "float64", "float16", "bfloat16"]
INTS = ["int32", "int64", "int8", "uint8", "bool"]


def data(shape, dtype, low=-3.0, high=3.0):
    if dtype == "bool":
        return flow.tensor(RNG.integers(0, 2, shape)).to(flow.bool)
    if dtype in INTS:
        low, high = (0, 100) if dtype == "uint8" else (-100, 100)
        return flow.tensor(RNG.integers(low, high, shape)).to(getattr(flow, dtype))
    return flow.tensor(RNG.uniform(low, high, shape)).to(getattr(flow, dtype))


def numbers(t):
    t = t.cpu()
    return t.to(flow.float64).numpy() if t.dtype in (flow.float16, flow.bfloat16, flow.float32) else t.numpy()


# A few units in the last place: a device's library and contraction differ from the CPU's by those. Two-byte floats may
# round the other way, which is one unit of theirs.
TOLERANCE = {"float32": 1e-6, "float64": 4e-15, "float16": 2e-3, "bfloat16": 1.6e-2}


def same(got, want, scale=1.0):
    assert got.dtype == want.dtype and got.shape == want.shape
    name = str(want.dtype).split(".")[-1]
    g, w = numbers(got), numbers(want)
    if name in TOLERANCE:
        np.testing.assert_allclose(g, w, rtol=TOLERANCE[name] * scale, atol=TOLERANCE[name] * scale * 0.3)
    else:
        np.testing.assert_array_equal(g, w)


def check(native, fn, *tensors, scale=1.0):
    want = fn(*tensors)
    moved = [t.cuda() for t in tensors]
    with native():
        got = fn(*moved)
    assert got.is_cuda
    same(got, want, scale)


UNARY = [
    ("neg", -3, 3),
    ("abs", -3, 3),
    ("sign", -3, 3),
    ("square", -3, 3),
    ("reciprocal", 0.3, 3),
    ("sqrt", 0, 9),
    ("rsqrt", 0.1, 9),
    ("exp", -3, 3),
    ("expm1", -3, 3),
    ("log", 0.01, 9),
    ("log2", 0.01, 9),
    ("log10", 0.01, 9),
    ("log1p", -0.9, 9),
    ("sin", -9, 9),
    ("cos", -9, 9),
    ("tan", -1, 1),
    ("asin", -1, 1),
    ("acos", -1, 1),
    ("atan", -3, 3),
    ("sinh", -3, 3),
    ("cosh", -3, 3),
    ("tanh", -3, 3),
    ("asinh", -3, 3),
    ("acosh", 1, 5),
    ("atanh", -0.9, 0.9),
    ("erf", -3, 3),
    ("erfc", -3, 3),
    ("erfinv", -0.9, 0.9),
    ("floor", -3, 3),
    ("ceil", -3, 3),
    ("round", -3, 3),
    ("trunc", -3, 3),
    ("frac", -3, 3),
    ("sigmoid", -6, 6),
    ("isnan", -3, 3),
    ("isinf", -3, 3),
    ("isfinite", -3, 3),
    ("logical_not", -3, 3),
]


@pytest.mark.parametrize(
    "name,low,high", [u for u in UNARY if hasattr(flow, u[0])], ids=lambda v: v if isinstance(v, str) else ""
)
def test_unary_functions(native, name, low, high):
    fn = getattr(flow, name)
    for dtype in FLOATS:
        check(native, fn, data((3, 7), dtype, low, high), scale=4)
    check(native, fn, data((1030,), "float32", low, high), scale=4)


@pytest.mark.parametrize(
    "name",
    [
        "relu",
        "gelu",
        "silu",
        "mish",
        "softsign",
        "hardsigmoid",
        "hardswish",
        "selu",
        "logsigmoid",
        "softplus",
        "leaky_relu",
        "elu",
        "celu",
        "hardtanh",
        "hardshrink",
        "softshrink",
        "relu6",
    ],
)
def test_activations_and_their_gradients(native, name):
    fn = getattr(flow.nn.functional, name, None)
    if fn is None:
        pytest.skip("not an op")
    for dtype in ["float32", "float64", "bfloat16"]:
        x = data((5, 9), dtype, -4, 4)
        check(native, fn, x, scale=4)
        a, b = x.clone().requires_grad_(), x.cuda().requires_grad_()
        weights = data((5, 9), dtype)
        (fn(a) * weights).sum().backward()
        (fn(b) * weights.cuda()).sum().backward()
        same(b.grad, a.grad, scale=8)


def test_trigonometry_of_large_numbers(native):
    x = flow.tensor([1e7, -3e9, 1e20, 2e6, 1e38], dtype=flow.float32)
    check(native, flow.sin, x, scale=4)
    check(native, flow.cos, x, scale=4)


def test_not_numbers_and_infinities(native):
    x = flow.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-42, 3e38], dtype=flow.float32)
    y = flow.tensor([1.0, math.nan, math.inf, -1.0, 0.0, -math.inf, 2.0], dtype=flow.float32)
    for fn in [
        flow.abs,
        flow.sign,
        flow.exp,
        flow.log,
        flow.tanh,
        flow.sigmoid,
        flow.sqrt,
        flow.erf,
        flow.isnan,
        flow.isinf,
        flow.relu,
    ]:
        check(native, fn, x)
    for fn in [flow.maximum, flow.minimum, flow.add, flow.mul, flow.div, flow.pow, flow.eq, flow.lt, flow.ge]:
        check(native, fn, x, y)


ARITHMETIC = ["add", "sub", "mul", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge"]


@pytest.mark.parametrize(
    "name", ARITHMETIC + ["div", "floor_divide", "fmod", "pow", "atan2", "logical_and", "logical_or", "logical_xor"]
)
def test_two_inputs(native, name):
    fn = getattr(flow, name, None)
    if fn is None:
        pytest.skip("not an op")
    positive = name in ("pow",)
    for dtype in FLOATS:
        low = 0.2 if positive else -3
        check(native, fn, data((4, 6), dtype, low), data((4, 6), dtype, 0.5 if name != "add" else -3), scale=4)
    check(native, fn, data((1037,), "float32", 0.2), data((1037,), "float32", 0.2), scale=4)


@pytest.mark.parametrize("dtype", INTS)
def test_integers_of_two_inputs(native, dtype):
    for name in ARITHMETIC:
        if dtype == "bool" and name == "sub":
            continue
        check(native, getattr(flow, name), data((5, 13), dtype), data((5, 13), dtype))
    for name in ["bitwise_and", "bitwise_or", "bitwise_xor", "logical_and", "logical_or"]:
        if hasattr(flow, name):
            check(native, getattr(flow, name), data((600,), dtype), data((600,), dtype))


@pytest.mark.parametrize("dtype", ["int32", "int64", "int8", "uint8"])
def test_integer_division(native, dtype):
    x, y = data((7, 5), dtype), data((7, 5), dtype)
    y = flow.where(y == 0, flow.ones_like(y), y)
    for name in ["floor_divide", "fmod", "remainder"]:
        if hasattr(flow, name):
            check(native, getattr(flow, name), x, y)
    check(native, lambda a: a // 3, x)
    check(native, lambda a: a % 7, x)


def test_integer_division_by_zero():
    x = flow.tensor([6, 7, 8]).cuda()
    with pytest.raises(ValueError, match="by (0|zero)"):
        x // flow.tensor([2, 0, 1]).cuda()
        flow.cuda.synchronize()
    with pytest.raises(ValueError, match="by (0|zero)"):
        x // 0
    flow.cuda.synchronize()
    assert (x // 2).cpu().tolist() == [3, 3, 4]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int64", "uint8"])
def test_layouts(native, dtype):
    a, b = data((6, 8, 16), dtype), data((6, 8, 16), dtype)
    layouts = [
        lambda x, y: x + y[:, :, :1],  # a column
        lambda x, y: x + y[0, 0],  # a row
        lambda x, y: x[:, :1] + y,
        lambda x, y: x.transpose(0, 1) + y.transpose(0, 1),
        lambda x, y: x.transpose(0, 2) * y.transpose(0, 2)[:, :1],
        lambda x, y: x[:, ::2] + y[:, 1::2],
        lambda x, y: x[:, :, 1:9] + y[:, :, 3:11],
        lambda x, y: x[:, :, ::-1] + y if False else x[1:4] + y[2:5],
        lambda x, y: x + y[0, 0, 0],  # no axes
        lambda x, y: x[0, 0, 0] + y[1, 1, 1],
        lambda x, y: x[:0] + y[:0],
        lambda x, y: x.expand(2, 6, 8, 16) + y,
    ]
    for fn in layouts:
        check(native, fn, a, b)


@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 31, 1023, 4097, 70001])
def test_lengths(native, n):
    for dtype in ["float32", "float16", "int64", "bool"]:
        check(native, flow.add, data((n,), dtype), data((n,), dtype))
        check(native, flow.abs if dtype != "bool" else flow.logical_not, data((n,), dtype))


def test_in_place(native):
    for dtype in ["float32", "bfloat16", "int32"]:
        a, b = data((9, 12), dtype), data((9, 12), dtype)
        x, y = a.cuda(), b.cuda()
        with native():
            x += y
            x.mul_(3)
            x[:, 2:5].add_(y[:, 1:4])
        a += b
        a.mul_(3)
        a[:, 2:5].add_(b[:, 1:4])
        same(x, a)


@pytest.mark.parametrize("dtype", FLOATS + ["int32", "int64", "uint8"])
def test_numbers_beside_tensors(native, dtype):
    x = data((5, 11), dtype, 0.5)
    for fn in [
        lambda a: a + 2,
        lambda a: 2 - a,
        lambda a: a * 3,
        lambda a: a > 1,
        lambda a: a**2,
        lambda a: a**3,
        lambda a: a.clamp(1, 2),
        lambda a: a.clamp(min=1),
        lambda a: a.clamp(max=2),
    ]:
        check(native, fn, x)
    if dtype in FLOATS:
        for fn in [
            lambda a: a / 3,
            lambda a: 2 / a,
            lambda a: a**0.5,
            lambda a: a**-0.5,
            lambda a: a**1.7,
            lambda a: 2**a,
            lambda a: a**-1,
            lambda a: flow.lerp(a, a * 2, 0.3) if hasattr(flow, "lerp") else a + 0,
        ]:
            check(native, fn, x, scale=4)


@pytest.mark.parametrize("dtype", FLOATS + INTS)
def test_selection(native, dtype):
    c, a, b = data((6, 34), "bool"), data((6, 34), dtype), data((6, 34), dtype)
    check(native, flow.where, c, a, b)
    check(native, lambda c, a, b: flow.where(c[:, :1], a, b[0]), c, a, b)
    check(native, lambda c, a, b: flow.where(c.transpose(0, 1), a.transpose(0, 1), b.transpose(0, 1)), c, a, b)
    check(native, lambda a, c: a.masked_fill(c, 1), a, c)
    check(native, lambda a, c: a.masked_fill(c[0], 0), a, c)
    wide = data((2, 4096), dtype)
    check(native, lambda c, a: flow.where(c, a, a[:1]), data((2, 4096), "bool"), wide)


def test_three_inputs(native):
    for dtype in ["float32", "float64", "bfloat16"]:
        a, b, c = (data((4, 10), dtype, 0.5) for _ in range(3))
        for name in ["addcmul", "addcdiv"]:
            if hasattr(flow, name):
                fn = getattr(flow, name)
                check(native, lambda x, y, z: fn(x, y, z, value=0.5), a, b, c, scale=2)
        check(
            native,
            lambda x, y, z: flow.nn.functional.binary_cross_entropy_with_logits(x, y, reduction="none"),
            a,
            b,
            c,
            scale=4,
        )


def test_operations_that_a_dtype_does_not_have():
    for x in [flow.tensor([1, 2]), flow.tensor([1, 2]).cuda()]:
        y = flow.empty(2, dtype=flow.int64, device=x.device)
        with pytest.raises(TypeError):
            x & flow.tensor([1.0, 2.0], device=x.device).to(flow.float32)
        del y


def test_a_list_of_what_lies_on_a_device():
    assert flow.tensor([[1.0, 2.0], [3.0, 4.0]]).cuda().transpose(0, 1).tolist() == [[1, 3], [2, 4]]
