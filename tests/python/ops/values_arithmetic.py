"""Arithmetic between tensors, and between a tensor and a number."""

import numpy as np
from op_table import ALL_FLOATS, a, i, m, row, wrong

SHAPES = [((5, 3), (5, 3)), ((5, 3), (3,)), ((5, 1), (3,)), ((), (5,)), ((0, 3), (3,)), ((), ())]


def positive(*shape):
    return a(*shape, low=0.4, high=2)


BOTH = {
    "add": (np.add, a),
    "sub": (np.subtract, a),
    "mul": (np.multiply, a),
    "div": (np.divide, positive),
    "pow": (np.power, a),
    "maximum": (np.maximum, a),
    "minimum": (np.minimum, a),
    "fmod": (np.fmod, positive),
    "remainder": (np.remainder, positive),
    "floor_divide": (np.floor_divide, positive),
}
EXACT = {"fmod", "remainder", "floor_divide"}  # jump where halves round across a multiple
for op, (function, second) in BOTH.items():
    dtypes = ("float64",) if op in EXACT else ALL_FLOATS
    for left, right in SHAPES:
        first = positive if op == "pow" else a
        row(op, function, first(*left), second(*right), dtypes=dtypes)
    row(op, function, positive(5, 3), 1.5, dtypes=dtypes)
    row(
        op,
        lambda x, n, f=function, op=op: f(x, n) if op != "div" else (x / n).astype(np.float32),
        i(5, low=1, high=9),
        3,
    )
    row(
        op,
        lambda x, y, f=function, op=op: f(x, y) if op != "div" else (x / y).astype(np.float32),
        i(4, 3, low=1, high=5),
        i(3, low=1, high=4),
    )
# Numbers on the left.
for op in ("add", "sub", "mul", "div", "maximum", "minimum", "remainder", "fmod", "floor_divide", "pow"):
    row(op, lambda n, x, f=BOTH[op][0]: f(n, x), 2.5, positive(5), dtypes=("float64",))

for op, function in {"fmod": np.fmod, "remainder": np.remainder, "floor_divide": np.floor_divide}.items():
    signs = np.array([7, -7, 7, -7, 6, -6]), np.array([3, 3, -3, -3, 3, -3])
    row(op, function, *signs)
    row(op, function, *(x.astype(np.float64) for x in signs))
    row(op, function, signs[0].astype(np.int8), signs[1].astype(np.int8))

row("add", lambda x, y, alpha: x + alpha * y, a(5, 3), a(3), alpha=0.5)
row("add", lambda x, y, alpha: x + alpha * y, i(5), i(5), alpha=2)
row("add", lambda x, y, alpha: x + alpha * y, a(5), 2, alpha=0.5)
row("sub", lambda x, y, alpha: x - alpha * y, a(5, 3), a(3), alpha=0.5)
row("sub", lambda x, y, alpha: x - alpha * y, i(5), i(5), alpha=2)
row("add", np.logical_or, m(5), m(5)[::-1].copy())
row("mul", np.logical_and, m(5), m(5)[::-1].copy())
numbers = np.array([7.5, -7.5, 7.0, -7.0]), np.array([2.0, 2.0, -2.0, -2.0])
row("div", lambda x, y, rounding_mode: np.trunc(x / y), *numbers, rounding_mode="trunc")
row("div", lambda x, y, rounding_mode: np.floor(x / y), *numbers, rounding_mode="floor")
row("div", lambda x, y, rounding_mode: x / y, *numbers, rounding_mode=None)
row(
    "div",
    lambda x, y, rounding_mode: np.trunc(x / y).astype(np.int64),
    np.array([7, -7]),
    np.array([2, 2]),
    rounding_mode="trunc",
)
row("div", lambda x, y, rounding_mode: x // y, np.array([7, -7]), 2, rounding_mode="floor")
row("div", lambda x, y: np.array([np.inf, -np.inf, np.nan]), np.array([1.0, -1.0, 0.0]), np.array([0.0, 0.0, 0.0]))
for op in ("maximum", "minimum"):
    row(op, getattr(np, op), np.array([np.nan, 1.0, np.inf]), np.array([1.0, np.nan, -np.inf]))

for exponent in (0, 1, 2, 3, -1, 0.5, -0.5, 2.5):
    row("pow", np.power, positive(5), exponent, dtypes=ALL_FLOATS)
row("pow", np.power, i(5), 3)
row("pow", np.power, i(5), i(5))
row("pow", lambda b, x: np.power(2.0, x), 2.0, a(5))
row("pow", lambda x, n: np.array([np.nan, -8.0, 0.0, 1.0, np.inf]), np.array([np.nan, -2.0, 0.0, 1.0, np.inf]), 3)
row("sum_to_size", lambda x, size: x.sum(0, keepdims=True), a(5, 3), (1, 3))
row("sum_to_size", lambda x, size: x.sum((0, 2)).reshape(3, 1), a(2, 3, 4), (3, 1))

for op in ("add", "mul", "pow"):
    wrong(op, a(5, 3), a(4), error=ValueError, says=r"\[5, 3\].*\[4\]")
    wrong(op, a(5), "x", error=TypeError, says="must be Tensor or a number")
wrong("add", i(3), i(3), alpha=0.5, error=TypeError, says="alpha")
wrong("sub", m(3), m(3), error=TypeError, says="logical_xor")
wrong("sub", m(3), True, error=TypeError, says="logical_xor")
wrong("pow", i(3), -1, error=ValueError, says="negative power")
wrong("div", a(3), a(3), rounding_mode="up", error=ValueError, says="'floor' or 'trunc'")
for op in ("floor_divide", "remainder", "fmod"):
    wrong(op, i(3), np.array([1, 0, 1]), error=ValueError, says="0|zero")
wrong("sum_to_size", a(5, 3), 4, error=ValueError, says="broadcast")
