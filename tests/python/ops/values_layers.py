"""Compositions behind layers."""

import numpy as np
from op_table import a, i, row, wrong


def bilinear(x1, x2, w, bias=None):
    y = np.einsum("...i,oij,...j->...o", x1, w, x2)
    return y if bias is None else y + bias


for shape in ((5,), (2, 3), (), (0,)):
    row("bilinear", bilinear, a(*shape, 3), a(*shape, 4), a(2, 3, 4), a(2), rtol=1e-4)
row("bilinear", bilinear, a(5, 3), a(5, 4), a(2, 3, 4), rtol=1e-4)
wrong("bilinear", a(5, 3), a(5, 4), a(2, 4, 3), error=ValueError, says=r"must be \[..., i\]")
wrong("bilinear", a(5, 3), a(4, 4), a(2, 3, 4), error=ValueError, says=r"must be \[..., i\]")
wrong("bilinear", a(5, 3), a(5, 4), a(2, 12), error=ValueError, says=r"must be \[..., i\]")


def by_gram_schmidt(x):
    if x.shape[0] > x.shape[1]:
        return by_gram_schmidt(x.T).T
    q, r = np.linalg.qr(x.T)
    return (q * np.sign(np.diag(r))).T


for shape in ((3, 5), (5, 3), (4, 4), (1, 3), (0, 3)):
    row("orthonormalize", by_gram_schmidt, a(*shape), dtypes=("float64",), rtol=1e-8)
wrong("orthonormalize", a(3), error=ValueError, says="must be a matrix")
wrong("orthonormalize", i(3, 3), error=TypeError, says="floating point")
