"""Products and small linear algebra."""

import numpy as np
from op_table import a, i, row, wrong

TIGHT = 1e-5  # of sums whose terms cancel

for x, y in (
    ((4, 5), (5, 3)),
    ((5,), (5, 3)),
    ((4, 5), (5,)),
    ((5,), (5,)),
    ((2, 4, 5), (5, 3)),
    ((2, 1, 4, 5), (3, 5, 2)),
    ((5,), (2, 5, 3)),
    ((2, 4, 5), (5,)),
    ((4, 0), (0, 3)),
    ((0, 4), (4, 3)),
):
    row("matmul", np.matmul, a(*x), a(*y), rtol=TIGHT)
row("matmul", np.matmul, i(4, 5, low=-3), i(5, 3))
wrong("matmul", a(4, 5), a(4, 5), error=ValueError, says="inner sizes differ")
wrong("matmul", a(), a(3), error=ValueError, says="need an axis")
wrong("matmul", a(2, 4, 5), a(3, 5, 2), error=ValueError, says="")
row("linear", lambda x, w: x @ w.T, a(4, 5), a(3, 5), rtol=TIGHT)
row("linear", lambda x, w, b: x @ w.T + b, a(2, 4, 5), a(3, 5), a(3), rtol=TIGHT)
wrong("linear", a(4, 5), a(5, 3), error=ValueError, says="inner sizes differ")
wrong("linear", a(4, 5), a(3, 5), a(4), error=ValueError, says="bias")
row("bmm", np.matmul, a(3, 4, 5), a(3, 5, 2), rtol=TIGHT)
row("mm", np.matmul, a(4, 5), a(5, 2), rtol=TIGHT)
row("mv", np.matmul, a(4, 5), a(5), rtol=TIGHT)
row("vector_matrix_product", np.matmul, a(5), a(5, 3), rtol=TIGHT)
for op in ("dot", "vdot"):
    row(op, np.dot, a(7), a(7), rtol=TIGHT)
    row(op, np.dot, i(7), i(7))
    wrong(op, a(3), a(4), error=ValueError, says="inner sizes differ")
    wrong(op, a(3, 3), a(3), error=ValueError, says="takes 1 axis")
wrong("bmm", a(3, 4, 5), a(2, 5, 2), error=ValueError, says="numbers of matrices differ")
wrong("bmm", a(4, 5), a(5, 2), error=ValueError, says="takes 3 axes")
wrong("mm", a(4, 5), a(4, 5), error=ValueError, says="inner sizes differ")
wrong("mv", a(4, 5), a(4), error=ValueError, says="inner sizes differ")
wrong("vector_matrix_product", a(5), a(4, 3), error=ValueError, says="inner sizes differ")
row("outer", np.outer, a(4), a(3))
wrong("outer", a(4, 1), a(3), error=ValueError, says="takes 1 axis")
row("inner", np.inner, a(4, 5), a(3, 5), rtol=TIGHT)
row("inner", np.inner, a(5), a(2, 3, 5), rtol=TIGHT)
row("inner", np.inner, a(), a(3))
wrong("inner", a(3), a(4), error=ValueError, says="inner sizes differ")


def blend(product):
    return lambda x, p, q, beta=1, alpha=1: beta * x + alpha * product(p, q)


row("addmm", blend(np.matmul), a(4, 3), a(4, 5), a(5, 3), rtol=TIGHT)
row("addmm", blend(np.matmul), a(3), a(4, 5), a(5, 3), beta=0.5, alpha=-2, rtol=TIGHT)
row("addmm", lambda x, p, q, beta: p @ q, np.full((4, 3), np.nan), a(4, 5), a(5, 3), beta=0, rtol=TIGHT)
row("addmv", blend(np.matmul), a(4), a(4, 5), a(5), alpha=3, rtol=TIGHT)
row("baddbmm", blend(np.matmul), a(3, 4, 2), a(3, 4, 5), a(3, 5, 2), beta=2, rtol=TIGHT)
row("addbmm", blend(lambda p, q: (p @ q).sum(0)), a(4, 2), a(3, 4, 5), a(3, 5, 2), rtol=TIGHT)
wrong("addmm", a(5), a(4, 5), a(5, 3), error=ValueError, says="broadcast|5")
wrong("addmm", a(3), a(4, 5), a(4, 3), error=ValueError, says="addmm: inner sizes differ")
wrong("baddbmm", a(3), a(4, 5), a(4, 3), error=ValueError, says="takes 3 axes")
wrong("addmv", a(3), a(4, 5), a(4), error=ValueError, says="addmv: inner sizes differ")
wrong("addbmm", a(3), a(4, 5), a(4, 3), error=ValueError, says="takes 3 axes")

for equation, *shapes in (
    ("ij,jk->ik", (4, 5), (5, 3)),
    ("ij,jk", (4, 5), (5, 3)),
    ("ij,kj->ki", (4, 5), (3, 5)),
    ("bij,bjk->bik", (3, 4, 5), (3, 5, 2)),
    ("bqhd,bkhd->bhqk", (2, 4, 3, 5), (2, 6, 3, 5)),
    ("...i,ij->...j", (2, 3, 4), (4, 5)),
    ("...ij,...jk", (2, 1, 4, 5), (3, 5, 2)),
    ("ii->i", (5, 5)),
    ("ii", (5, 5)),
    ("iij->j", (5, 5, 2)),
    ("ij->ji", (5, 3)),
    ("ij->", (5, 3)),
    ("ba", (5, 3)),
    ("...->...", (5, 3)),
    ("i,j->ij", (5,), (3,)),
    ("i,i", (5,), (5,)),
    ("ij,ij,j->i", (5, 3), (5, 3), (3,)),
    ("ab,bc,cd->ad", (2, 3), (3, 4), (4, 5)),
    ("ijk,jil->kl", (3, 4, 5), (4, 3, 2)),
    ("i...->...", (5, 3, 2)),
    ("...,...", (5, 3), (3,)),
    (" i j , j k -> i k ", (4, 5), (5, 3)),
    ("abc,cd,a->bd", (2, 3, 4), (4, 5), (2,)),
    ("ij,k->k", (2, 3), (4,)),
    ("iij,jk->ik", (3, 3, 4), (4, 2)),
    ("Aa,aB->AB", (2, 3), (3, 4)),
):
    row("einsum", lambda e, *x: np.einsum(e.replace(" ", ""), *x), equation, *[a(*s) for s in shapes], rtol=TIGHT)
row("einsum", lambda e, x: np.einsum(e, *x), "ij,jk->ik", [a(4, 5), a(5, 3)], rtol=TIGHT)
row("einsum", np.einsum, "ij,jk->ik", i(4, 5), i(5, 3))
wrong("einsum", "ij,jk->ik", a(4, 5), error=ValueError, says="has 2 operands, 1 tensors")
wrong("einsum", "ij,jk->ik", a(4, 5), a(4, 3), error=ValueError, says="index j .* sizes 5 and 4")
wrong("einsum", "ij->ik", a(4, 5), error=ValueError, says="index k .* appears in no operand")
wrong("einsum", "ij->ii", a(4, 5), error=ValueError, says="appears twice")
wrong("einsum", "ijk->i", a(4, 5), error=ValueError, says="one letter for each axis")
wrong("einsum", "i->i", a(4, 5), error=ValueError, says="one letter for each axis")
wrong("einsum", "i1->i", a(4, 5), error=ValueError, says="'1'")
wrong("einsum", "..i->i", a(4, 5), error=ValueError, says="einsum")
wrong("einsum", a(4, 5), error=TypeError, says="equation")
row("tensordot", lambda x, y: np.tensordot(x, y), a(4, 5, 3), a(5, 3), rtol=TIGHT)
row("tensordot", np.tensordot, a(4, 5), a(5, 3), 1, rtol=TIGHT)
row("tensordot", np.tensordot, a(4), a(3), 0)
row("tensordot", lambda x, y, p, q: np.tensordot(x, y, (p, q)), a(4, 5, 3), a(3, 4), [0, 2], [1, 0], rtol=TIGHT)
row("tensordot", np.tensordot, a(4, 5, 3), a(3, 4), ([0, 2], [1, 0]), rtol=TIGHT)
row("tensordot", lambda x, y, dims: np.tensordot(x, y, axes=dims), a(4, 5), a(3, 4), dims=([0], [1]), rtol=TIGHT)
wrong("tensordot", a(4, 5), a(4, 5), 1, error=ValueError, says="differ in size")
wrong("tensordot", a(4, 5), a(4, 5), 3, error=ValueError, says="cannot be contracted")
row("linalg_cross", np.cross, a(5, 3), a(5, 3))
row("linalg_cross", lambda x, y, dim: np.cross(x, y, axis=0), a(3, 5), a(3, 1), dim=0)
row("cross", lambda x, y: np.cross(x, y, axis=0), a(3, 5), a(3, 5))
row("cross", lambda x, y, d: np.cross(x, y), a(3, 3), a(3, 3), 1)
wrong("cross", a(4, 2), a(4, 2), error=ValueError, says="no axis of size 3")
wrong("linalg_cross", a(3, 4), a(3, 4), error=ValueError, says="3 elements")
row("kron", np.kron, a(2, 3), a(4, 1))
row("kron", np.kron, a(2), a(2, 3))
row("trace", np.trace, a(4, 3))
wrong("trace", a(3), error=ValueError, says="takes 2 axes")


def norm(x, p=2, dim=None, keepdim=False):
    p = 2 if p in ("fro", None) else p
    axis = tuple(dim) if isinstance(dim, list) else dim
    x = np.abs(x)
    if p == 0:
        return np.sum(x != 0, axis=axis, keepdims=keepdim).astype(np.float64)
    if np.isinf(p):
        return (np.max if p > 0 else np.min)(x, axis=axis, keepdims=keepdim)
    return np.sum(x**p, axis=axis, keepdims=keepdim) ** (1 / p)


for p in (2, 1, 0, 3, 0.5, -1, np.inf, -np.inf):
    row("norm", norm, a(4, 3), p, rtol=TIGHT)
    row("norm", norm, a(4, 3, 2), p, 1, rtol=TIGHT)
    row("linalg_vector_norm", norm, a(4, 3, 2), p, [0, -1], True, rtol=TIGHT)
row("norm", norm, a(4, 3), "fro", dim=(0, 1), rtol=TIGHT)
row("norm", norm, a(4, 3), rtol=TIGHT)
row("norm", lambda x: np.sqrt(np.sum(x * x)), np.full(300, 30.0), dtypes=("float16", "bfloat16"))
row("linalg_vector_norm", norm, a(), rtol=TIGHT)
wrong("norm", i(3), error=RuntimeError, says="int64")
wrong("norm", a(3, 3), "nuc", error=NotImplementedError, says="singular")
wrong("norm", a(3, 3), "x", error=ValueError, says="'x' is not a norm")
wrong("norm", a(3), 2, 1, error=IndexError, says="1")
row("linalg_norm", lambda x: np.linalg.norm(x), a(4, 3), rtol=TIGHT)
row("linalg_norm", lambda x: np.linalg.norm(x.ravel()), a(4, 3, 2), rtol=TIGHT)
for p in (1, -1, np.inf, -np.inf, "fro"):
    row("linalg_norm", np.linalg.norm, a(4, 3), p, rtol=TIGHT)
    row("linalg_matrix_norm", lambda x, p: np.linalg.norm(x, p, (-2, -1)), a(2, 4, 3), p, rtol=TIGHT)
    row("linalg_matrix_norm", lambda x, p, d, k: np.linalg.norm(x, p, d, k), a(2, 4, 3), p, (2, 0), True, rtol=TIGHT)
row("linalg_norm", lambda x, p, d: np.linalg.norm(x, p, d), a(4, 3), 3, 1, rtol=TIGHT)
wrong("linalg_norm", a(2, 3, 4), 1, error=ValueError, says="3 axes")
wrong("linalg_matrix_norm", a(3, 3), 2, error=NotImplementedError, says="singular")
wrong("linalg_matrix_norm", a(3, 3), 1, (0, 0), error=ValueError, says="does not name two axes")
wrong("linalg_vector_norm", a(3), "x", error=TypeError, says="ord")
