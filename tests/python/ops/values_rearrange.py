"""Shapes, continued: axes moved and turned, repetition, grids, diagonals."""

import numpy as np
from op_table import a, i, row, wrong

row("movedim", np.moveaxis, a(2, 3, 4), 0, -1)
row("movedim", np.moveaxis, a(2, 3, 4), [0, -1], [1, 0])
row("movedim", lambda x, s, d: x, a(), 0, -1)
wrong("movedim", a(2, 3), [0, 1], [0], error=ValueError, says="one position for each")
wrong("movedim", a(2, 3), [0, 0], [0, 1], error=ValueError, says="twice")
row("fliplr", np.fliplr, a(2, 3))
row("flipud", np.flipud, a(3))
wrong("fliplr", a(3), error=ValueError, says="two axes")
wrong("flipud", a(), error=ValueError, says="no axis")
for k in (0, 1, 2, 3, -1, 5):
    row("rot90", lambda x, k: np.rot90(x, k), a(2, 3), k)
row("rot90", lambda x, k, d: np.rot90(x, k, d), a(2, 3, 4), 1, (2, 0))
wrong("rot90", a(2, 3), 1, (0, 0), error=ValueError, says="twice")
row("roll", lambda x, s: np.roll(x, s), a(2, 3), 4)
row("roll", lambda x, s, d: np.roll(x, s, d), a(2, 3), -1, 1)
row("roll", lambda x, s, d: np.roll(x, s, d), i(4, 3), (7, -2), (0, -1))
row("roll", lambda x, s, d: np.roll(x, s, d), a(0, 3), 1, 0)
row("roll", lambda x, s, d: x, a(), 5, -1)
wrong("roll", a(2, 3), (1, 2), error=ValueError, says="2 shifts")
wrong("roll", a(2, 3), 1, 2, error=IndexError, says="2")
row("repeat", lambda x, *r: np.tile(x, r), a(2, 3), 2, 3)
row("repeat", lambda x, r: np.tile(x, r), i(3), (2, 1, 2))
row("repeat", lambda x, *r: np.tile(x, r), a(2, 3), 0, 1)
wrong("repeat", a(2, 3), 2, error=ValueError, says="one for each")
wrong("repeat", a(3), -1, error=ValueError, says="0 or more")
row("tile", lambda x, *r: np.tile(x, r), a(2, 3), 2)
row("tile", lambda x, r: np.tile(x, r), a(3), (2, 2))
row("repeat_interleave", lambda x, n: np.repeat(x, n), a(2, 3), 2)
row("repeat_interleave", lambda x, n, dim: np.repeat(x, n, dim), a(2, 3), 2, dim=-1)
row("repeat_interleave", lambda x, n, dim: np.repeat(x, n, dim), a(2, 3), np.array([2, 0]), dim=0)
row("repeat_interleave", lambda x, n: np.repeat(x, n), i(3), np.array([2, 0, 1]))
wrong("repeat_interleave", a(3), -1, error=ValueError, says="0 or more")
wrong("repeat_interleave", a(3), np.array([1, 2]), error=ValueError, says="one for each")
row("unbind", lambda x: list(x), a(2, 3))
row("unbind", lambda x, d: list(x.T), a(2, 3), -1)
wrong("unbind", a(), error=ValueError, says="no axis")
row("unflatten", lambda x, d, s: x.reshape(2, 3, 2), a(2, 6), 1, (3, -1))
wrong("unflatten", a(2, 6), 1, (4, -1), error=ValueError, says="the product of sizes")
row("tensor_split", lambda x, n: np.array_split(x, n), a(5, 2), 3)
row("tensor_split", lambda x, n, d: np.array_split(x, n, d), a(2, 5), 2, 1)
row("tensor_split", lambda x, n: np.split(x, n), a(5), [1, 3])
wrong("tensor_split", a(5), 0, error=ValueError, says="at least 1")
row("broadcast_like", lambda x, y: np.broadcast_to(x, y.shape), a(3), a(2, 3))
row("broadcast_like", lambda x, y, axes: np.broadcast_to(x[:, None], y.shape), a(2), a(2, 3), (1,))
row("broadcast_tensors", lambda *x: np.broadcast_arrays(*x), a(2, 1), a(3))
row("broadcast_tensors", lambda x: np.broadcast_arrays(*x), [a(2, 1), a(3)])
wrong("broadcast_tensors", a(2), a(3), error=ValueError, says="")
row("meshgrid", lambda *x: np.meshgrid(*x, indexing="ij"), a(2), a(3))
row("meshgrid", lambda x, indexing: np.meshgrid(*x, indexing=indexing), [a(2), a(3), i(4)], indexing="xy")
wrong("meshgrid", a(2, 2), error=ValueError, says="one axis")
wrong("meshgrid", a(2), indexing="yx", error=ValueError, says="indexing is 'yx'")
for op in ("atleast_1d", "atleast_2d", "atleast_3d"):
    for x in (a(), a(3), a(2, 3), a(2, 3, 4)):
        row(op, getattr(np, op), x)
    row(op, lambda x, f=getattr(np, op): [f(v) for v in x], [a(), a(3)])
for op in ("hstack", "vstack", "dstack"):
    row(op, getattr(np, op), [a(3), a(3)])
    row(op, getattr(np, op), [a(2, 3), a(2, 3)])
for form in ((), (1,), (-2,), (5,), (0, 2, 0), (1, -1, 1)):
    row("diagonal", lambda x, *f: np.diagonal(x, *f), a(3, 4, 2), *form)
wrong("diagonal", a(3, 3), 0, 1, 1, error=ValueError, says="same axis")
wrong("diagonal", a(3), error=(IndexError), says="")


def diag_embed(x, offset=0, dim1=-2, dim2=-1):
    n = x.shape[-1] + abs(offset)
    out = np.zeros((*x.shape[:-1], n, n), x.dtype)
    at = np.arange(x.shape[-1])
    out[..., at + max(-offset, 0), at + max(offset, 0)] = x
    return np.moveaxis(out, (-2, -1), (dim1, dim2))


for form in ((), (1,), (-2,), (0, 0, 1), (1, 2, 0)):
    row("diag_embed", diag_embed, a(2, 3), *form)
wrong("diag_embed", a(), error=ValueError, says="no axis")
for k in (0, 1, -2):
    row("diag", lambda x, k: np.diag(x, k), a(3), k)
    row("diag", lambda x, k: np.diag(x, k), a(3, 4), k)
wrong("diag", a(2, 3, 4), error=ValueError, says="one or two axes")
