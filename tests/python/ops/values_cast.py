"""Dtypes, and choices by a mask."""

import numpy as np
from op_table import ALL_FLOATS, a, i, m, no_truth, row, wrong

import holon as flow

row("cast", lambda x, d: x.astype(np.int64), a(5, 3), flow.int64)
row("cast", lambda x, d: x != 0, i(5, high=2), flow.bool)
row("cast", lambda x, d: x.astype(np.uint8), i(5), flow.uint8)
row("where", np.where, m(5, 3), a(5, 3), a(5, 3) + 1, dtypes=ALL_FLOATS)
row("where", np.where, m(5, 1), a(3), a(5, 3) + 1)
row("where", np.where, m(5), a(5), 0.5)
row("where", np.where, m(5), 0.5, a(5))
row("where", np.where, m(5), i(5), 7)
row("where", lambda c, x, y: np.where(c, x, y).astype(np.float32), m(5), i(5), 0.5)
row("where", lambda c, x, y: np.where(c, x, y).astype(np.float32), m(5), 1.5, 2)
row("where", lambda c, x, y: np.where(c, x, y), m(5), i(5, dtype="int32"), i(5))
row("masked_fill", lambda x, c, v: np.where(c, v, x), a(5, 3), m(5, 3), 0.5, dtypes=ALL_FLOATS)
row("masked_fill", lambda x, c, v: np.where(c, v, x), a(5, 3), m(3), -np.inf)
row("masked_fill", lambda x, c, v: np.where(c, v, x), i(5), m(5), 7)
row("masked_fill", lambda x, c, v: np.where(c, v, x), a(5, 3), m(5, 3), np.array(0.25))
row("clamp", lambda x, lo, hi: np.clip(x, lo, hi), a(5, 3), -0.5, 1.0, dtypes=ALL_FLOATS)
row("clamp", lambda x, min: np.maximum(x, min), a(5), min=0.3)
row("clamp", lambda x, max: np.minimum(x, max), a(5), max=0.3)
row("clamp", lambda x, lo, hi: np.clip(x, lo, hi), i(5, low=-4), -2, 2)
row("clamp", lambda x, lo, hi: np.clip(x, lo, hi).astype(np.float32), i(5, low=-4), -1.5, 2)
row("clamp", lambda x, lo, hi: np.clip(x, lo, hi), a(5, 3), a(3, low=-1, high=0), a(5, 1, low=0, high=1))
row("clamp", lambda x, lo, hi: np.clip(x, lo, hi), a(5, 3), -0.5, a(3, low=0, high=1))
row("clamp", lambda x, max: np.minimum(x, max), a(5, 3), max=a(3))
row(
    "clamp",
    lambda *_: np.array([np.nan, np.nan, 1.0]),
    np.array([np.nan, 0.0, 3.0]),
    np.array([0.0, np.nan, 0.0]),
    np.array([1.0, 1.0, 1.0]),
)
row("clamp", lambda x, lo, hi: np.array([np.nan, 1.0]), np.array([np.nan, np.inf]), 0.0, 1.0)
row("clamp_min", np.maximum, a(5), 0.3)
row("clamp_min", np.maximum, a(5), a(5)[::-1].copy())
row("clamp_max", np.minimum, a(5), 0.3)
row("to_device", lambda x, d: x, a(5), "cpu")
no_truth("copy", "test_in_place.py")
no_truth("pin_memory", "tests/cuda/test_pinned.py")
wrong("where", a(3), a(3), a(3), error=TypeError, says="condition is not bool")
wrong("where", m(3), a(4), a(3), error=ValueError, says="broadcast|do not fit|cannot")
wrong("masked_fill", a(3), a(3), 0.5, error=TypeError, says="mask is not bool")
row("masked_fill", lambda x, mask, v: np.where(mask, v, x), a(3), m(2, 3), 0.5)
wrong("masked_fill", a(3), m(2, 4), 0.5, error=ValueError, says="broadcast|shape")
wrong("masked_fill", a(3), m(3), a(2), error=ValueError, says="without axes")
wrong("clamp", a(3), error=ValueError, says="neither min nor max")
wrong("cast", a(3), "float99", error=TypeError, says="dtype")
