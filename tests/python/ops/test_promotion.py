"""The dtypes of results: PyTorch's rules, as a table."""

import operator

import numpy as np
import pytest

import holon as flow

NAMES = ["bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
# Of two tensors with axes; the row is the one, the column the other.
# (uint8 with int8 is int16 in PyTorch, which Holon has not.)
TABLE = """
bool     bool     uint8    int8     int32    int64    float16  bfloat16 float32  float64
uint8    uint8    uint8    int32    int32    int64    float16  bfloat16 float32  float64
int8     int8     int32    int8     int32    int64    float16  bfloat16 float32  float64
int32    int32    int32    int32    int32    int64    float16  bfloat16 float32  float64
int64    int64    int64    int64    int64    int64    float16  bfloat16 float32  float64
float16  float16  float16  float16  float16  float16  float16  float32  float32  float64
bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 float32  bfloat16 float32  float64
float32  float32  float32  float32  float32  float32  float32  float32  float32  float64
float64  float64  float64  float64  float64  float64  float64  float64  float64  float64
"""
PROMOTED = {
    (row.split()[0], NAMES[k]): name for row in TABLE.split("\n") if row for k, name in enumerate(row.split()[1:])
}
CATEGORY = {name: 0 if name == "bool" else 1 if "int" in name and "float" not in name else 2 for name in NAMES}


def of(name, *shape):
    return flow.ones(shape, dtype=getattr(flow, name))


def name_of(tensor):
    return str(tensor.dtype).split(".")[-1]


@pytest.mark.parametrize("left", NAMES)
@pytest.mark.parametrize("right", NAMES)
def test_two_tensors(left, right):
    want = PROMOTED[left, right]
    x, y = of(left, 3), of(right, 3)
    for op in (operator.add, operator.mul, flow.maximum, flow.minimum):
        assert name_of(op(x, y)) == want
    if want != "bool":
        assert name_of(x - y) == want
    quotient = want if CATEGORY[want] == 2 else "float32"
    assert name_of(x / y) == quotient
    assert name_of(flow.atan2(x, y)) == quotient
    for op in (operator.eq, operator.lt, flow.logical_and):
        assert name_of(op(x, y)) == "bool"
    assert name_of(flow.where(x > 0, x, y)) == want
    assert name_of(flow.cat([x, y])) == want
    assert (x + y).numpy().tolist() == [True if want == "bool" else 2] * 3


@pytest.mark.parametrize("axes", NAMES)
@pytest.mark.parametrize("scalar", NAMES)
def test_a_tensor_without_axes_lifts_the_category_only(axes, scalar):
    want = axes if CATEGORY[scalar] <= CATEGORY[axes] else PROMOTED[axes, scalar]
    assert name_of(of(axes, 3) + of(scalar)) == want
    assert name_of(of(scalar) * of(axes, 3)) == want
    assert name_of(flow.where(flow.ones(3, dtype=flow.bool), of(axes, 3), of(scalar))) == want
    # Without axes on either side they are equals.
    assert name_of(of(axes) + of(scalar)) == PROMOTED[axes, scalar]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(3,), ()])
def test_a_number_lifts_the_category_only(name, shape):
    x = of(name, *shape)
    lifted = {True: name, 2: "int64" if name == "bool" else name, 0.5: name if CATEGORY[name] == 2 else "float32"}
    for number, want in lifted.items():
        for result in (
            x + number,
            number + x,
            x * number,
            number * x,
            flow.maximum(x, number),
            flow.where(x > 0, x, number),
        ):
            assert name_of(result) == want, (name, number)
        if want != "bool":
            assert name_of(x - number) == name_of(number - x) == want
        assert name_of(x / number) == name_of(number / x) == (want if CATEGORY[want] == 2 else "float32")
        assert name_of(x == number) == "bool"
        assert name_of(flow.masked_fill(x, x > 0, number)) == want
        assert name_of(flow.clamp(x, min=number)) == want
    if CATEGORY[name] == 1:
        assert name_of(x**2) == name_of(x // 2) == name_of(x % 2) == name_of(2**x) == name


@pytest.mark.parametrize("name", NAMES)
def test_functions_of_floats_take_integers_as_float32(name):
    want = name if CATEGORY[name] == 2 else "float32"
    for op in ("exp", "sqrt", "sin", "sigmoid", "tanh", "erf", "log1p", "reciprocal", "rsqrt", "atan", "erfinv"):
        assert (
            name_of(getattr(flow, op)(of(name, 3) if op != "erfinv" else flow.zeros(3, dtype=getattr(flow, name))))
            == want
        )
    for op in ("abs", "sign", "square", "floor", "round", "relu"):
        assert name_of(getattr(flow, op)(of(name, 3))) == name


@pytest.mark.parametrize("name", NAMES)
def test_every_dtype_can_be_made(name):
    dtype = getattr(flow, name)
    for x in (
        flow.zeros(2, 3, dtype=dtype),
        flow.ones((2, 3), dtype=dtype),
        flow.full((2, 3), 1, dtype=dtype),
        flow.empty(2, 3, dtype=dtype),
        flow.zeros_like(flow.ones(2, 3), dtype=dtype),
        flow.eye(2, 3, dtype=dtype),
        flow.ones(2, 3).new_zeros(2, 3, dtype=dtype),
        flow.ones(2, 3).new_full((2, 3), 1, dtype=dtype),
    ):
        assert name_of(x) == name and tuple(x.shape) == (2, 3)
    assert name_of(flow.tensor([1, 0], dtype=dtype)) == name
    if name != "bool":
        assert name_of(flow.arange(3, dtype=dtype)) == name


def test_dtypes_of_creation_follow_the_numbers():
    assert (
        flow.full((2,), 1).dtype == flow.int64
        and flow.full((2,), 1.0).dtype == flow.float32
        and flow.full((2,), True).dtype == flow.bool
    )
    assert (
        flow.arange(3).dtype == flow.int64
        and flow.arange(3.0).dtype == flow.float32
        and flow.arange(0, 1, 0.5).dtype == flow.float32
    )
    assert (
        flow.tensor([1, 2]).dtype == flow.int64
        and flow.tensor([1.0]).dtype == flow.float32
        and flow.tensor([True]).dtype == flow.bool
    )
    assert (
        flow.linspace(0, 1, 3).dtype == flow.float32
        and flow.randint(3, (2,)).dtype == flow.int64
        and flow.randperm(3).dtype == flow.int64
    )
    x = flow.ones(2, dtype=flow.float64)
    assert (
        x.new_ones(3).dtype
        == x.new_tensor([1]).dtype
        == flow.randn_like(x).dtype
        == flow.full_like(x, 1).dtype
        == flow.float64
    )


def test_promotion_keeps_gradients_in_their_own_dtype():
    x = flow.ones(3, dtype=flow.float32, requires_grad=True)
    y = flow.ones(3, dtype=flow.float64, requires_grad=True)
    (x * y).sum().backward()
    assert x.grad.dtype == flow.float32 and y.grad.dtype == flow.float64
    (flow.where(flow.ones(3, dtype=flow.bool), x, y) * np.float64(2)).sum().backward()
    assert x.grad.numpy().tolist() == [3, 3, 3]
