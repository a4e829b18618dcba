"""Order, search, and results whose shape the values decide."""

import numpy as np
from op_table import ALL_FLOATS, a, i, m, row, wrong

NAN = np.array([[1.0, np.nan, 3.0], [4.0, 5.0, -6.0]])


def order(x, dim=-1, descending=False):
    if descending:  # stable: equal elements keep their order
        return (
            np.flip(x.shape[dim] - 1 - np.argsort(np.flip(x, dim), axis=dim, kind="stable"), dim)
            if x.size
            else np.zeros(x.shape, np.int64)
        )
    return np.argsort(x, axis=dim, kind="stable")


def sort(x, dim=-1, descending=False, **_):
    at = order(x, dim, descending)
    return np.take_along_axis(x, at, dim), at


for form in ({}, {"dim": 0}, {"dim": 1, "descending": True}, {"descending": True, "stable": True}):
    row("sort", sort, a(4, 5, 3), **form)
    row("sort", sort, i(4, 7, high=3), **{k: v for k, v in form.items()})
    row("argsort", lambda *args, **kwargs: sort(*args, **kwargs)[1], i(4, 7, high=3), **form)
row("sort", sort, a(4, 5), dtypes=ALL_FLOATS)
row("sort", sort, NAN)
row("sort", lambda x: (x, np.int64(0)), a())
row("sort", sort, a(0, 3), 0)
row("sort", sort, m(9))
row("msort", lambda x: np.sort(x, 0), a(5, 3))
for op in ("sort", "argsort"):
    wrong(op, a(3, 2), 2, error=IndexError, says="2")
    wrong(op, a(3, 2), "x", error=TypeError, says="dim")


def topk(x, k, dim=-1, largest=True, sorted=True):
    values, at = sort(x, dim, largest)
    return np.take(values, np.arange(k), dim), np.take(at, np.arange(k), dim)


for form in ({}, {"dim": 0}, {"largest": False}, {"sorted": False}):
    row("topk", topk, a(4, 5), 3, **form)
row("topk", topk, i(4, 9, high=3), 5)
row("topk", topk, a(4, 5), 0)
row("topk", topk, NAN, 2)
wrong("topk", a(4, 5), 6, error=ValueError, says=r"k = 6 is not in \[0, 5\]")
wrong("topk", a(4, 5), -1, error=ValueError, says="k = -1")
wrong("topk", a(4, 5), 2, 2, error=IndexError, says="2")

EDGES = np.array([0, 2, 2, 5])
row("searchsorted", lambda s, v: np.searchsorted(s, v), EDGES, i(3, 4, low=-1, high=7))
row("searchsorted", lambda s, v, right: np.searchsorted(s, v, "right"), EDGES, i(3, 4, low=-1, high=7), right=True)
row("searchsorted", lambda s, v, side: np.searchsorted(s, v, side), np.sort(a(7)), a(3, 4), side="right")
row("searchsorted", lambda s, v, out_int32: np.searchsorted(s, v).astype(np.int32), EDGES, i(5), out_int32=True)
row(
    "searchsorted",
    lambda s, v: np.stack([np.searchsorted(p, q) for p, q in zip(s, v, strict=True)]),
    np.sort(a(3, 7)),
    a(3, 4),
)
row("searchsorted", lambda s, v: np.searchsorted(s, v), EDGES, 2)
row("bucketize", lambda x, b: np.searchsorted(b, x), a(3, 4, low=-2, high=7), EDGES.astype(float))
row("bucketize", lambda x, b, right: np.searchsorted(b, x, "right"), i(3, 4, high=7), EDGES, right=True)
wrong("searchsorted", i(2, 3), i(3, 4), error=ValueError, says="leading axes")
wrong("searchsorted", EDGES, i(3), side="up", error=ValueError, says="'left' or 'right'")
wrong("bucketize", i(3), i(2, 3), error=ValueError, says="must have one axis")

for x in (m(4, 5), i(4, 5, high=2), np.array([[0.0, 0.5], [np.nan, 0.0]]), np.zeros((0, 3), bool), np.zeros((2, 3))):
    for op in ("nonzero", "argwhere"):
        row(op, np.argwhere, x)
    row("nonzero", lambda x, as_tuple: np.nonzero(x) if as_tuple else np.argwhere(x), x, as_tuple=True)
    row("where", lambda x: np.nonzero(x), x != 0)
row("nonzero", np.argwhere, np.array(3))
row("nonzero", lambda x, as_tuple: np.argwhere(x), m(4, 5), as_tuple=False)
row("masked_select", lambda x, k: x[k], a(4, 5), m(4, 5))
row("masked_select", lambda x, k: np.broadcast_to(x, (4, 5))[np.broadcast_to(k, (4, 5))], a(4, 1), m(5))
row("masked_select", lambda x, k: x[k != 0], a(4, 5), i(4, 5))
wrong("masked_select", a(4, 5), a(4, 5), error=TypeError, says="must be bool")
wrong("masked_select", a(4, 5), m(4, 3), error=ValueError, says="")

row("unique", np.unique, i(4, 6, high=5))
row("unique", np.unique, np.array([0.5, -1.0, 0.5]))
row("unique", np.unique, np.zeros(0))
row(
    "unique",
    lambda x, s, return_inverse, return_counts: (lambda u, v, c: (u, v.reshape(x.shape), c))(
        *np.unique(x, False, True, True)
    ),
    i(4, 6, high=5),
    True,
    return_inverse=True,
    return_counts=True,
)
for dim in (0, 1):
    row("unique", lambda x, dim: np.unique(x, axis=dim), i(6, 3, high=2) if dim == 0 else i(3, 6, high=2), dim=dim)
row("unique", lambda x, return_counts: np.unique(x, return_counts=True), m(9), return_counts=True)
wrong("unique", i(3), dim=1, error=IndexError, says="1")

row("bincount", np.bincount, i(9, high=5))
row("bincount", lambda x, minlength: np.bincount(x, minlength=minlength), i(9, high=5), minlength=8)
row("bincount", np.bincount, i(9, high=5), a(9), dtypes=("float64",))
row("bincount", np.bincount, np.zeros(0, np.int64))
wrong("bincount", np.array([0, -1]), error=ValueError, says="negative")
wrong("bincount", i(2, 3), error=ValueError, says="one axis")
wrong("bincount", a(3), error=TypeError, says="integers")
row("histc", lambda x, bins: np.histogram(x, bins)[0].astype(float), a(20), 4)
row("histc", lambda x, bins, min, max: np.histogram(x, bins, (min, max))[0].astype(float), a(20), 5, -1, 1)
wrong("histc", i(3), error=TypeError, says="floating")
wrong("histc", a(3), 0, error=ValueError, says="bins is 0")
wrong("histc", a(3), 3, 2, 1, error=ValueError, says="not an interval")

for q in (0.0, 0.3, 1.0):
    row("quantile", lambda x, q: np.quantile(x, q), a(4, 5), q, rtol=1e-5)
    row(
        "quantile",
        lambda x, q, dim, keepdim=False: np.quantile(x, q, axis=dim, keepdims=keepdim),
        a(4, 5, 3),
        q,
        1,
        rtol=1e-5,
    )
    row(
        "quantile",
        lambda x, q, dim, keepdim=False: np.quantile(x, q, axis=dim, keepdims=keepdim),
        a(4, 5, 3),
        q,
        dim=-1,
        keepdim=True,
        rtol=1e-5,
    )
    row("nanquantile", lambda x, q, dim: np.nanquantile(x, q, axis=dim), NAN, q, 1, rtol=1e-5)
for interpolation in ("lower", "higher", "midpoint", "nearest", "linear"):
    row(
        "quantile",
        lambda x, q, dim, interpolation: np.quantile(x, q, axis=dim, method=interpolation),
        a(4, 5),
        0.35,
        1,
        interpolation=interpolation,
        rtol=1e-5,
    )
row("quantile", lambda x, q, dim: np.quantile(x, q, axis=dim), NAN, 0.5, 1)
row("quantile", lambda x, q, dim: np.quantile(x, q, axis=dim), a(4, 5), np.array([0.25, 0.5, 0.75]), 0, rtol=1e-5)
row("nanquantile", lambda x, q: np.nanquantile(x, q), NAN, np.array([0.25, 0.5]), rtol=1e-5)
wrong("quantile", a(3), 1.5, error=ValueError, says=r"q = 1.5 is not in \[0, 1\]")
wrong("quantile", i(3), 0.5, error=TypeError, says="float32 and float64")
wrong("quantile", a(3), 0.5, interpolation="cubic", error=ValueError, says="interpolation is 'cubic'")
wrong("quantile", a(3), 0.5, 1, error=IndexError, says="1")
