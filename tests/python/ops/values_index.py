"""Reading and writing by index."""

import numpy as np
from op_table import ALL_FLOATS, a, i, row, wrong

ROWS = i(4, high=5)


def gather(x, dim, index):
    grid = list(np.indices(index.shape))
    grid[dim] = index
    return x[tuple(grid)]


def scatter(x, dim, index, src, reduce=None):
    out, src = x.copy(), np.broadcast_to(src, index.shape) if np.ndim(src) == 0 else src
    for at in np.ndindex(*index.shape):
        to = list(at)
        to[dim] = index[at]
        to = tuple(to)
        out[to] = src[at] if reduce is None else out[to] + src[at] if reduce == "add" else out[to] * src[at]
    return out


row("embedding", lambda w, n: w[n], a(7, 3), i(2, 5, high=7), dtypes=ALL_FLOATS)
row("embedding", lambda w, n, padding_idx: w[n], a(7, 3), i(5, high=7, dtype="int32"), padding_idx=-1)
row("embedding", lambda w, n: w[n], a(7, 3), i(0, 2, high=7))
wrong("embedding", np.zeros((3,)), i(2), error=ValueError, says="must have two axes")
wrong("embedding", a(3, 2), np.array([0.5]), error=TypeError, says="int64 or int32")
row("index_select", lambda x, d, n: np.take(x, n, d), a(5, 3), 0, ROWS, dtypes=ALL_FLOATS)
row("index_select", lambda x, d, n: np.take(x, n, d), i(5, 6), -1, ROWS.astype("int32"))
row("index_select", lambda x, d, n: np.take(x, n[None], d), a(5, 3), 0, np.array(2))
for op in ("index_select",):
    wrong(op, a(3, 2), 0, np.array([3]), error=IndexError, says=r"index 3 at position 0 .* outside \[0, 3\)")
    wrong(op, a(3, 2), 0, np.array([0, -1]), error=IndexError, says=r"index -1 at position 1")
    wrong(op, a(3, 2), 2, np.array([0]), error=IndexError, says="2")
    wrong(op, a(3, 2), 0, np.array([[0]]), error=ValueError, says="more than one axis")
    wrong(op, a(3, 2), 0, np.array([0.5]), error=TypeError, says="int64 or int32")
row("gather", gather, a(5, 3), 0, i(4, 3))
row("gather", gather, a(5, 3), 1, i(4, 6, high=3), dtypes=ALL_FLOATS)
row("gather", gather, a(2, 5, 3), -2, i(2, 7, 3, dtype="int32"))
row("gather", lambda x, d, n: x, a(), 0, np.array(0))
wrong("gather", a(3, 2), 0, np.array([[3, 0]]), error=IndexError, says=r"index 3 at position 0 .* outside \[0, 3\)")
wrong("gather", a(3, 2), 0, np.array([[0, -1]]), error=IndexError, says=r"index -1")
wrong("gather", a(3, 2), 0, np.array([0]), error=ValueError, says="different numbers of axes")
wrong("gather", a(3, 2), 0, i(1, 3, high=2), error=ValueError, says="larger than x")

AT = np.array([[3, 0, 1], [0, 2, 4]])  # each named once
row("scatter", scatter, a(5, 3), 0, AT, a(2, 3), dtypes=ALL_FLOATS)
row("scatter", scatter, a(5, 3), 0, AT, a(4, 3))
row("scatter", scatter, i(3, 5), 1, AT[:, :2], i(2, 2))
row("scatter", scatter, a(5, 3), 0, AT, 0.5)
for reduce in ("add", "multiply"):
    row("scatter", scatter, a(5, 3), 0, i(4, 3), a(4, 3), reduce=reduce, rtol=1e-5)
    row("scatter", scatter, a(5, 3), 0, i(4, 3), 0.5, reduce=reduce, rtol=1e-5)
row("scatter_add", lambda x, d, n, s: scatter(x, d, n, s, "add"), a(5, 3), 0, i(4, 3), a(4, 3), rtol=1e-5)
row("scatter_add", lambda x, d, n, s: scatter(x, d, n, s, "add"), i(5, 3), -1, i(5, 4, high=3), i(5, 4))
for op in ("scatter", "scatter_add"):
    wrong(
        op, a(3, 2), 0, np.array([[5, 0]]), a(1, 2), error=IndexError, says=r"index 5 at position 0 .* outside \[0, 3\)"
    )
    wrong(op, a(3, 2), 0, np.array([[0, 0]]), a(2), error=ValueError, says="same number of axes")
    wrong(op, a(3, 2), 0, np.array([[0, 0]]), a(1, 1), error=ValueError, says="larger than src")
    wrong(op, a(3, 2), 0, np.array([[0.5, 0]]), a(1, 2), error=TypeError, says="int64 or int32")
    wrong(op, a(3, 2), 0, np.array([[0, 0]]), i(1, 2), error=TypeError, says="different dtypes")
wrong("scatter", a(3, 2), 0, np.array([[0, 0]]), a(1, 2), reduce="max", error=ValueError, says="'add' or 'multiply'")
wrong("scatter", a(3, 2), 0, np.array([[0, 0]]), "x", error=TypeError, says="no overload")


def index_add(x, dim, index, source, alpha=1):
    out = np.moveaxis(x.copy(), dim, 0)
    np.add.at(out, index, alpha * np.moveaxis(source, dim, 0))
    return np.moveaxis(out, 0, dim)


def index_put(x, dim, index, source):
    out = np.moveaxis(x.copy(), dim, 0)
    out[index] = np.moveaxis(source, dim, 0) if np.ndim(source) else source
    return np.moveaxis(out, 0, dim)


row("index_add", index_add, a(5, 3), 0, ROWS, a(4, 3), rtol=1e-5)
row("index_add", index_add, a(3, 5), 1, ROWS, a(3, 4), alpha=0.5, rtol=1e-5)
row("index_add", index_add, i(5, 3), 0, ROWS, i(4, 3), alpha=2)
row("index_copy", index_put, a(5, 3), 0, np.array([3, 0]), a(2, 3))
row("index_copy", index_put, i(3, 5), -1, np.array([3, 0]), i(3, 2))
row("index_fill", index_put, a(5, 3), 0, ROWS, 0.5)
row("index_fill", index_put, i(3, 5), 1, ROWS, 7)
for op in ("index_add", "index_copy"):
    wrong(op, a(3, 2), 0, np.array([3]), a(1, 2), error=IndexError, says="3")
    wrong(op, a(3, 2), 0, np.array([0]), a(2, 2), error=ValueError, says=r"must be \[1, 2\]")
wrong("index_fill", a(3, 2), 2, np.array([0]), 1, error=IndexError, says="2")
wrong("index_fill", a(3, 2), 0, np.array([[0]]), 1, error=ValueError, says="Flatten")

row("take", lambda x, n: x.ravel()[n], a(2, 3), np.array([[5, -1], [0, 2]]))
row("take_along_dim", lambda x, n, dim: np.take_along_axis(x, n, dim), a(5, 3), i(2, 3), 0)
row("take_along_dim", lambda x, n, dim: np.take_along_axis(x, np.broadcast_to(n, (2, 3)), dim), a(5, 3), i(2, 1), 0)
row("take_along_dim", lambda x, n: np.take_along_axis(x, n, None), a(5, 3), i(7, high=15))
row("batch_gather", lambda x, n: np.stack([r[k] for r, k in zip(x, n, strict=True)]), a(3, 5, 2), i(3, 4))
row("gather_nd", lambda x, n: x[tuple(np.moveaxis(n, -1, 0))], a(5, 3, 2), i(4, 2, high=3))
row("gather_nd", lambda x, n: x[tuple(np.moveaxis(n, -1, 0))], i(5, 3), i(2, 4, 1))
wrong("gather_nd", a(3, 2), i(4, 3), error=ValueError, says="names 3 axes")


def scatter_nd(index, update, shape):
    out = np.zeros(shape, update.dtype)
    np.add.at(out, tuple(np.moveaxis(index, -1, 0)), update)
    return out


def nd_update(x, index, update):
    out = x.copy()
    out[tuple(np.moveaxis(index, -1, 0))] = update
    return out


row("scatter_nd", scatter_nd, i(4, 1), a(4, 3), (5, 3), rtol=1e-5)
row("scatter_nd", scatter_nd, i(4, 2, high=3), i(4), [3, 3])
row("tensor_scatter_nd_update", nd_update, a(5, 3), np.array([[3], [0]]), a(2, 3))
row("tensor_scatter_nd_update", nd_update, a(5, 3), np.array([[3, 1], [0, 2]]), a(2))
wrong("scatter_nd", i(4, 3), a(4), [3, 3], error=ValueError, says="names 3 axes")
wrong("tensor_scatter_nd_update", a(5, 3), np.array([[3], [0]]), a(2, 2), error=ValueError, says="")

row("one_hot", lambda x, n: np.eye(n, dtype=np.int64)[x], i(2, 3, high=4), 5)
row("one_hot", lambda x: np.eye(4, dtype=np.int64)[x], np.array([0, 3, 1]))
row("one_hot", lambda x, num_classes: np.eye(5, dtype=np.int64)[x], i(0, high=4), num_classes=5)
wrong("one_hot", np.array([0, 3]), 3, error=IndexError, says=r"index 3 at position 1 .* outside \[0, 3\)")
wrong("one_hot", np.array([0, -1]), 3, error=IndexError, says="-1")
wrong("one_hot", np.array([0, 3]), 0, error=ValueError, says="num_classes is 0")
wrong("one_hot", np.array([0.5]), 3, error=TypeError, says="int64 or int32")
