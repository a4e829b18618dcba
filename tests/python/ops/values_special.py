"""Functions of two and three tensors."""

import numpy as np
from op_table import ALL_FLOATS, a, i, row, wrong

b = a(5, 3, low=0.4, high=2)
row("addcmul", lambda x, y, z: x + y * z, a(5, 3), a(3), b, dtypes=ALL_FLOATS)
row("addcmul", lambda x, y, z, value: x + value * y * z, a(5, 3), a(5, 1), b, value=-0.5)
row("addcmul", lambda x, y, z, value: x + value * y * z, i(5), i(5), i(5), value=2)
row("addcdiv", lambda x, y, z: x + y / z, a(5, 3), a(3), b, dtypes=ALL_FLOATS)
row("addcdiv", lambda x, y, z, value: x + value * y / z, a(5, 3), a(5, 1), b, value=-0.5)
row("lerp", lambda x, y, w: x + w * (y - x), a(5, 3), b, 0.3, dtypes=ALL_FLOATS)
row("lerp", lambda x, y, w: x + w * (y - x), a(5, 3), b, a(3))
for op, function in {"atan2": np.arctan2, "hypot": np.hypot, "logaddexp": np.logaddexp}.items():
    for left, right in ((a(5, 3), a(5, 3)[::-1].copy()), (a(5, 1), a(3)), (a(), a(5)), (a(0, 3), a(3))):
        row(op, function, left, right, dtypes=ALL_FLOATS)
    row(op, function, a(5), 0.7)
    row(op, function, 0.7, a(5))
    row(op, lambda x, y, f=function: f(x, y).astype(np.float32), i(5, low=1), i(5, low=1))
    wrong(op, a(5), a(4), error=ValueError, says=r"\[5\].*\[4\]")
row("atan2", np.arctan2, np.array([0.0, -0.0, 1.0, -1.0]), np.array([-1.0, -1.0, 0.0, 0.0]))
row("logaddexp", np.logaddexp, np.array([np.inf, -np.inf, 1e4, np.nan]), np.array([np.inf, -np.inf, -1e4, 1.0]))
row("hypot", lambda x, y: np.array([5e20, np.inf]), np.array([3e20, np.inf]), np.array([4e20, np.nan]))
row(
    "xlogy",
    lambda x, y: np.where(x == 0, np.where(np.isnan(y), np.nan, 0), x * np.log(y)),
    np.array([0.0, 0.0, 2.0, 0.0]),
    np.array([0.0, np.nan, 3.0, -1.0]),
)
row("xlogy", lambda x, y: x * np.log(y), a(5, 3), b)
row("xlogy", lambda x, y: x * np.log(y), a(5), 0.7)
row("xlogy", lambda x, y: x * np.log(y), 0.7, b)
wrong("addcmul", a(5), a(4), a(5), error=ValueError, says=r"\[4\]")
wrong("addcdiv", i(5), i(5), i(5), error=TypeError, says="floating point")
wrong("lerp", i(5), i(5), 0.5, error=TypeError, says="floating point")
wrong("lerp", a(5), a(5), error=TypeError, says="no overload")
