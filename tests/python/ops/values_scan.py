"""Running sums, products and extrema."""

import numpy as np
from op_table import ALL_FLOATS, a, i, m, row, wrong

NAN = np.array([[1.0, np.nan, 3.0], [4.0, 5.0, -6.0]])


def scan(function):
    return lambda x, dim, **k: function(x, axis=dim, dtype=np.int64 if x.dtype.kind in "biu" else None)


for op in ("cumsum", "cumprod"):
    for dim in (0, 1, -1):
        row(op, scan(getattr(np, op)), a(4, 3, 2), dim)
    row(op, scan(getattr(np, op)), a(4, 3), 0, dtypes=ALL_FLOATS, rtol=None)
    for sample in (i(4, 3, low=-3, dtype="int32"), m(4, 3), i(0, 3)):
        row(op, scan(getattr(np, op)), sample, 0)
    row(op, lambda x, dim: x, a(), 0)
    wrong(op, a(3, 2), 2, error=IndexError, says="2")
    wrong(op, a(3, 2), error=TypeError, says="dim")


def cumextremum(better):
    def call(x, dim):
        x = np.moveaxis(x, dim, 0)
        values, at = x.copy(), np.zeros(x.shape, np.int64)
        for k in range(1, len(x)):
            keep = ~(better(x[k], values[k - 1]) | np.isnan(x[k])) | (np.isnan(values[k - 1]) & ~np.isnan(x[k]))
            values[k] = np.where(keep, values[k - 1], x[k])
            at[k] = np.where(keep, at[k - 1], k)
        return np.moveaxis(values, 0, dim), np.moveaxis(at, 0, dim)

    return call


for op, better in (("cummax", np.greater_equal), ("cummin", np.less_equal)):
    row(op, cumextremum(better), a(5, 3), 0)
    row(op, cumextremum(better), i(5, 6, high=3), 1)
    row(op, cumextremum(better), NAN, -1)
    wrong(op, a(3), 1, error=IndexError, says="1")

row("logcumsumexp", lambda x, dim: np.log(np.cumsum(np.exp(x), axis=dim)), a(5, 3), 0)
row(
    "logcumsumexp",
    lambda x, dim: np.logaddexp.accumulate(x, axis=dim),
    a(5, 3, low=500, high=900),
    -1,
    dtypes=ALL_FLOATS,
)
row("logcumsumexp", lambda x, dim: np.logaddexp.accumulate(x, axis=dim), np.array([-np.inf, -np.inf, 1.0]), 0)
wrong("logcumsumexp", i(3), 0, error=TypeError, says="floating")
wrong("logcumsumexp", a(3), 1, error=IndexError, says="1")

row("diff", lambda x: np.diff(x), a(4, 5))
row("diff", lambda x, n, dim: np.diff(x, n, dim), a(4, 5), 2, 0)
row("diff", lambda x, n: np.diff(x, n), a(3), 5)
row("diff", lambda x: np.diff(x), m(5))
row("diff", lambda x: np.diff(x), i(5))
wrong("diff", a(), error=ValueError, says="no axis")
wrong("diff", a(3), -1, error=ValueError, says="negative")
