"""Comparisons, logic and bits."""

import numpy as np
from op_table import ALL_FLOATS, a, i, m, row, wrong

for op, function in {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}.items():
    row(op, function, a(5, 3), a(3), dtypes=ALL_FLOATS)
    row(op, function, i(5, 3, high=3), i(3, high=3))
    row(op, function, i(5, high=3), 1)
    row(op, function, i(5, high=3), 1.5)
    row(op, function, m(5), m(5)[::-1].copy())
    row(op, function, np.array([np.nan, 1.0, np.inf]), np.array([np.nan, 1.0, -np.inf]))
    row(op, function, a(), a())
    row(op, function, a(0, 3), a(3))
    wrong(op, a(5), a(4), error=ValueError, says=r"\[5\].*\[4\]")
for op in ("logical_and", "logical_or", "logical_xor"):
    for left, right in (
        (m(5), m(5)[::-1].copy()),
        (i(5, high=2), a(5)),
        (np.array([np.nan, 0.0]), np.array([1.0, 1.0])),
    ):
        row(op, getattr(np, op), left, right)
for op, function in {"bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor}.items():
    for dtype in ("int8", "uint8", "int32", "int64"):
        row(op, function, i(4, 5, high=99, dtype=dtype), i(5, high=77, dtype=dtype))
    row(op, function, m(5), m(5)[::-1].copy())
    row(op, function, i(5, low=-9), 3)
    row(op, function, i(5, dtype="int32"), i(5))
    wrong(op, a(3), i(3), error=TypeError, says="integers and bools")
    wrong(op, i(3), 1.5, error=TypeError, says="integers and bools")
for op, function in {"bitwise_left_shift": np.left_shift, "bitwise_right_shift": np.right_shift}.items():
    row(op, function, i(4, 5, low=-9, high=99), i(5, high=9))
    row(op, function, i(5, high=9, dtype="int32"), 2)
    row(op, function, 3, i(5, high=9))
    wrong(op, m(3), m(3), error=TypeError, says="shifted")
row("bitwise_left_shift", lambda x, y: np.array([0, 0, 1 << 62]), np.array([1, 5, 1]), np.array([64, 100, 62]))
row("bitwise_right_shift", lambda x, y: np.array([0, -1, 1]), np.array([1, -5, 5]), np.array([64, 100, 2]))

for kwargs in ({}, {"rtol": 0.1}, {"atol": 0.2, "rtol": 0.0}, {"equal_nan": True}):
    x = np.array([1.0, 1.05, np.nan, np.inf, np.inf, 0.0])
    y = np.array([1.0, 1.0, np.nan, np.inf, -np.inf, 0.1])
    row("isclose", np.isclose, x, y, **kwargs, dtypes=("float64",))
row("isclose", np.isclose, i(5), i(5), rtol=0.5)
row("isclose", np.isclose, np.array([200], np.uint8), np.array([201], np.uint8), atol=1.0)
row("allclose", np.allclose, a(5), a(5))
row("allclose", np.allclose, a(5), a(5) + 1)
row("allclose", np.allclose, a(5), a(5) + 1, atol=2.0)
row("equal", np.array_equal, i(5), i(5))
row("equal", np.array_equal, i(5), i(6))
wrong("isclose", a(3), a(3), rtol=-1.0, error=ValueError, says="negative")
wrong("isclose", a(3), a(4), error=ValueError, says=r"\[3\].*\[4\]")
