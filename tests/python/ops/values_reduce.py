"""Reductions."""

import numpy as np
from op_table import ALL_FLOATS, a, i, m, row, wrong

NAN = np.array([[1.0, np.nan, 3.0], [4.0, 5.0, -6.0]])


def along(function):
    """A NumPy reduction with holon's words."""

    def call(x, dim=None, keepdim=False, **kwargs):
        axis = tuple(dim) if isinstance(dim, list) else dim
        if isinstance(axis, tuple) and not axis:
            axis = None
        return function(x, axis=axis, keepdims=keepdim, **kwargs)

    return call


def total(function):
    """As int64 where x holds integers or bools."""
    return along(lambda x, **k: function(x, dtype=np.int64 if x.dtype.kind in "biu" else None, **k))


FORMS = [{}, {"dim": 0}, {"dim": -1, "keepdim": True}, {"dim": (0, 2)}, {"dim": [-1, 1], "keepdim": True}, {"dim": ()}]
for op, function in {
    "sum": total(np.sum),
    "mean": along(np.mean),
    "prod": total(np.prod),
    "amax": along(np.max),
    "amin": along(np.min),
    "nansum": along(np.nansum),
    "nanmean": along(np.nanmean),
}.items():
    for form in FORMS:
        row(op, function, a(4, 3, 2), **form)
    row(op, function, a(4, 3), dim=1, dtypes=ALL_FLOATS)
    row(op, function, a())
for op in ("sum", "prod"):
    function = total(getattr(np, op))
    for sample in (i(3, 4, low=-3, dtype="int32"), i(3, 4, high=3, dtype="uint8"), m(3, 4), i(3, 4, low=-2)):
        row(op, function, sample)
        row(op, function, sample, dim=1)
    row(op, function, np.zeros((0, 3)), dim=0)
    row(op, function, np.zeros((3, 0)))
for op in ("amax", "amin"):
    for sample in (i(3, 4, low=-3, dtype="int32"), m(3, 4)):
        row(op, along(getattr(np, op[1:])), sample, dim=0)
    row(op, along(getattr(np, op[1:])), NAN, dim=1)
    wrong(op, np.zeros((0, 3)), dim=0, error=ValueError, says="without elements")
row("nansum", along(np.nansum), NAN, dim=1)
row("nanmean", along(np.nanmean), NAN, dim=0)
row("count_nonzero", lambda x, dim=None: np.asarray(np.count_nonzero(x, axis=dim)), i(4, 5, high=2))
row("count_nonzero", lambda x, dim=None: np.asarray(np.count_nonzero(x, axis=dim)), m(4, 5), dim=1)
row("count_nonzero", lambda x, dim=None: np.asarray(np.count_nonzero(x, axis=dim)), np.array([0.0, 0.5, np.nan]))
for op in ("sum", "mean", "prod", "amax", "any", "all", "var", "std"):
    wrong(op, a(3, 2), dim=2, error=IndexError, says="2")
    wrong(op, a(3, 2), dim=(0, 0), error=ValueError, says="twice")
    wrong(op, a(3, 2), dim="x", error=TypeError, says="dim")
for op in ("mean", "var", "std", "nanmean"):
    wrong(op, i(3), error=RuntimeError, says="int64")

for op in ("any", "all"):
    for form in FORMS:
        row(op, along(getattr(np, op)), m(4, 3, 2), **form)
    row(op, along(getattr(np, op)), i(4, 3, high=2), dim=0)
    row(op, along(getattr(np, op)), np.array([0.0, 0.25]))
    row(op, along(getattr(np, op)), np.zeros((0, 3), bool), dim=0)


def arg(function):
    return lambda x, dim=None, keepdim=False: np.asarray(function(x, axis=dim, keepdims=keepdim))


for op in ("argmax", "argmin"):
    for form in ({}, {"dim": 0}, {"dim": -1, "keepdim": True}, {"keepdim": True}):
        row(op, arg(getattr(np, op)), a(4, 3, 2), **form)
    row(op, arg(getattr(np, op)), i(4, 6, high=3), dim=1)
    row(op, arg(getattr(np, op)), NAN, dim=1)
    wrong(op, np.zeros((0, 3)), error=ValueError, says="without elements")
    wrong(op, a(3), dim=1, error=IndexError, says="1")


def selected(arg, value):
    """(values, indices) along an axis."""

    def call(x, dim, keepdim=False):
        at = np.expand_dims(arg(x, axis=dim), dim)
        values = np.take_along_axis(x, at, dim)
        return (values, at) if keepdim else (values.squeeze(dim), at.squeeze(dim))

    return call


for op, at, function, other in (("max", np.argmax, np.max, np.maximum), ("min", np.argmin, np.min, np.minimum)):
    row(op, function, a(4, 3), dtypes=ALL_FLOATS)
    row(op, function, i(4, 3, low=-5))
    row(op, function, NAN)
    row(op, other, a(4, 3), a(3, low=-1))
    for x in (a(4, 3, 2), i(4, 3, high=2), NAN):
        row(op, selected(at, function), x, 1)
        row(op, selected(at, function), x, dim=0, keepdim=True)
        row(op, selected(at, function), x, -1)
    row(op, lambda x, dim: (x, np.int64(0)), a(), -1)
    wrong(op, a(3), "x", error=TypeError, says=r"(?s)no overload accepts \(Tensor \[3\], str .x.\).*int dim")
    wrong(op, np.zeros((0, 3)), error=ValueError, says="without elements")
    wrong(op, a(3), 1, error=IndexError, says="1")
    wrong(op, a(3, 2), a(3, 3), error=ValueError, says="broadcast|3")


def low_median(x, axis=None):
    order = np.argsort(x if axis is not None else x.ravel(), axis=-1 if axis is None else axis, kind="stable")
    return np.take(order, (x.shape[axis] - 1) // 2, axis)


row("median", lambda x: np.sort(x.ravel())[(x.size - 1) // 2], a(4, 3))
row("median", lambda x: np.sort(x.ravel())[(x.size - 1) // 2], a(5), dtypes=ALL_FLOATS)
row("median", lambda x: np.nan, NAN)
row("median", selected(low_median, None), a(4, 3), 0)
row("median", selected(low_median, None), a(4, 3, 5), dim=-1, keepdim=True)
row("median", selected(low_median, None), i(4, 6, high=60), 1)
row("median", lambda x, dim: (np.array([np.nan, 4]), np.array([1, 0])), NAN, 1)
wrong("median", np.zeros(0, np.int64), error=ValueError, says="without elements")
wrong("median", a(3), 1, error=IndexError, says="1")


def kth(x, k, dim=-1, keepdim=False):
    at = np.take(np.argsort(x, axis=dim, kind="stable"), [k - 1], dim)
    values = np.take_along_axis(x, at, dim)
    return (values, at) if keepdim else (values.squeeze(dim), at.squeeze(dim))


row("kthvalue", kth, a(4, 5), 2)
row("kthvalue", kth, a(4, 5), 3, 0, True)
wrong("kthvalue", a(3), 4, error=ValueError, says=r"k = 4 is not in \[1, 3\]")
wrong("kthvalue", a(3), 0, error=ValueError, says="k = 0")

for op, function in {"var": np.var, "std": np.std}.items():

    def spread(x, dim=None, unbiased=True, keepdim=False, correction=None, f=function):
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        axis = tuple(dim) if isinstance(dim, list) else dim
        return f(x, axis=axis, ddof=int(unbiased) if correction is None else correction, keepdims=keepdim)

    def with_mean(x, *args, f=spread, **kwargs):
        average = {k: v for k, v in kwargs.items() if k in ("dim", "keepdim")}
        return f(x, *args, **kwargs), along(np.mean)(x, *args, **average)

    for form in (
        {},
        {"dim": 0},
        {"dim": (0, 2), "unbiased": False},
        {"dim": -1, "keepdim": True},
        {"correction": 0},
        {"dim": [0], "correction": 2},
    ):
        row(op, spread, a(4, 3, 5), rtol=1e-5, **form)
        row(op + "_mean", with_mean, a(4, 3, 5), rtol=1e-5, **form)
    row(op, spread, a(4, 3), False)
    row(op, spread, a(4, 3), unbiased=False)
    row(op, lambda x: np.nan, a(1))
    wrong(op + "_mean", i(3), error=RuntimeError, says="int64")


def logsumexp(x, dim, keepdim=False):
    x = x.astype(np.float64)
    axis = tuple(dim) if isinstance(dim, list) else dim
    shift = np.max(x, axis=axis, keepdims=True)
    shift = np.where(np.isfinite(shift), shift, 0)
    return np.log(np.sum(np.exp(x - shift), axis=axis, keepdims=keepdim)) + (
        shift if keepdim else np.squeeze(shift, axis)
    )


row("logsumexp", logsumexp, a(4, 3), 1)
row("logsumexp", logsumexp, a(4, 3, 2, low=500, high=900), [0, -1], True)
row("logsumexp", logsumexp, np.array([[-np.inf, -np.inf], [0, np.inf]]), 1)
row("logsumexp", logsumexp, i(4, 3), 0)
wrong("logsumexp", a(3), 1, error=IndexError, says="1")

row(
    "aminmax",
    lambda x, dim=None, keepdim=False: (np.min(x, axis=dim, keepdims=keepdim), np.max(x, axis=dim, keepdims=keepdim)),
    a(4, 3),
)
row(
    "aminmax",
    lambda x, dim=None, keepdim=False: (np.min(x, axis=dim, keepdims=keepdim), np.max(x, axis=dim, keepdims=keepdim)),
    a(4, 3),
    dim=1,
    keepdim=True,
)
wrong("aminmax", np.zeros((0, 3)), error=ValueError, says="without elements")

row("equal", lambda x, y: np.asarray(np.array_equal(x, y)), a(3), a(3))
row("equal", lambda x, y: np.asarray(np.array_equal(x, y)), a(3), a(4))
row("equal", lambda x, y: np.asarray(np.array_equal(x, y)), i(3), i(3) + 1)
