"""Losses of distributions, and of margins between classes."""

import numpy as np
from op_table import a, i, row, wrong

REDUCTIONS = {"mean": np.mean, "sum": np.sum, "none": lambda x: x}


def poisson(x, t, log_input=True, full=False, eps=1e-8):
    loss = np.exp(x) - t * x if log_input else x - t * np.log(x + eps)
    if full:
        n = np.maximum(t, 1)
        loss = loss + np.where(t > 1, n * np.log(n) - n + np.log(2 * np.pi * n) / 2, 0)
    return loss


def gaussian(x, t, var, full=False, eps=1e-6):
    var = np.maximum(var[..., None] if var.ndim < x.ndim else var, eps)
    return (np.log(var) + (x - t) ** 2 / var) / 2 + (np.log(2 * np.pi) / 2 if full else 0)


def multi_margin(x, y, p=1, margin=1.0, weight=None):
    single = x.ndim == 1
    x, y = np.atleast_2d(x), np.atleast_1d(y)
    out = np.zeros(len(x))
    for n in range(len(x)):
        for j in range(x.shape[1]):
            if j != y[n]:
                out[n] += max(0, margin - x[n, y[n]] + x[n, j]) ** p * (1 if weight is None else weight[y[n]])
    out /= x.shape[1]
    return out[0] if single else out


def multilabel_margin(x, y):
    single = x.ndim == 1
    x, y = np.atleast_2d(x), np.atleast_2d(y)
    out = np.zeros(len(x))
    for n in range(len(x)):
        targets = []
        for k in y[n]:
            if k < 0:
                break
            targets.append(k)
        for k in targets:
            for j in range(x.shape[1]):
                if j not in targets:
                    out[n] += max(0, 1 - x[n, k] + x[n, j])
    out /= x.shape[1]
    return out[0] if single else out


def multilabel_soft_margin(x, t, weight=None):
    loss = t * np.logaddexp(0, -x) + (1 - t) * np.logaddexp(0, x)
    return (loss if weight is None else loss * weight).mean(-1)


def rows(op, f, *args, **options):
    for reduction, reduce in REDUCTIONS.items():
        row(op, lambda *x, reduction, r=reduce, **o: r(f(*x, **o)), *args, reduction=reduction, rtol=1e-5, **options)
    wrong(op, *args, reduction="max", error=ValueError, says="'mean', 'sum' or 'none'")


counts = np.array([[0.0, 1, 2], [3, 0, 7], [1, 1, 4]])
rows("poisson_nll_loss", poisson, a(3, 3), counts)
rows("poisson_nll_loss", poisson, a(3, 3), counts, full=True)
rows("poisson_nll_loss", poisson, a(3, 3, low=0, high=2), counts, log_input=False, eps=0.1)
wrong("poisson_nll_loss", i(3), i(3), error=TypeError, says="input is int64")
wrong("poisson_nll_loss", a(3), a(3), eps=-1.0, error=ValueError, says="eps is -1")

var = a(5, 3, low=0.1, high=2)
rows("gaussian_nll_loss", gaussian, a(5, 3), a(5, 3)[::-1].copy(), var)
rows("gaussian_nll_loss", gaussian, a(5, 3), a(5, 3)[::-1].copy(), var[:, 0].copy(), full=True)
rows("gaussian_nll_loss", gaussian, a(5, 3), a(5, 3)[::-1].copy(), var[:, :1].copy(), eps=1.0)
rows("gaussian_nll_loss", gaussian, a(5, 3), a(5, 3)[::-1].copy(), np.zeros((5, 3)))
wrong("gaussian_nll_loss", a(5, 3), a(5, 3), -var, error=ValueError, says="must not be negative")
wrong("gaussian_nll_loss", a(5, 3), a(5, 3), a(2, 3), error=ValueError, says=r"var is \[2, 3\], input \[5, 3\]")
wrong("gaussian_nll_loss", a(5, 3), a(5, 3), var, eps=0.0, error=ValueError, says="eps is 0")
wrong("gaussian_nll_loss", a(5, 3), a(5, 3), i(5, 3), error=TypeError, says="var is int64")

rows("multi_margin_loss", multi_margin, a(5, 4), i(5, high=4))
rows("multi_margin_loss", multi_margin, a(5, 4), i(5, high=4, dtype="int32"), p=2, margin=0.5)
rows("multi_margin_loss", multi_margin, a(5, 4), i(5, high=4), weight=a(4, low=0.1))
row("multi_margin_loss", multi_margin, a(4), np.array(2))
wrong("multi_margin_loss", a(5, 4), i(5, low=4, high=6), error=IndexError, says="4|5")
wrong("multi_margin_loss", a(5, 4), i(4), error=ValueError, says=r"target of shape \[5\]; found \[4\]")
wrong("multi_margin_loss", a(5, 4), a(5), error=TypeError, says="int64 or int32")
wrong("multi_margin_loss", a(5, 4), i(5, high=4), p=3, error=ValueError, says="p is 3")
wrong("multi_margin_loss", a(5, 4), i(5, high=4), weight=a(3), error=ValueError, says="weight has shape")
wrong("multi_margin_loss", a(5, 4, 1), i(5), error=ValueError, says="it takes")

labels = np.array([[1, 3, -1, 0], [-1, 2, 0, 1], [0, 1, 2, 3], [2, 0, -5, 1], [3, -1, -1, -1]])
rows("multilabel_margin_loss", multilabel_margin, a(5, 4), labels)
row("multilabel_margin_loss", multilabel_margin, a(4), labels[0])
wrong("multilabel_margin_loss", a(5, 4), labels + 3, error=IndexError, says="4|5|6")
wrong("multilabel_margin_loss", a(5, 4), labels[:2], error=ValueError, says=r"found \[2, 4\]")
wrong("multilabel_margin_loss", a(5, 4), a(5, 4), error=TypeError, says="int64 or int32")

bits = i(5, 4, high=2).astype(np.float64)
rows("multilabel_soft_margin_loss", multilabel_soft_margin, a(5, 4), bits)
rows("multilabel_soft_margin_loss", multilabel_soft_margin, a(5, 4), bits, weight=a(4, low=0.1))
wrong("multilabel_soft_margin_loss", a(5, 4), bits[:2], error=ValueError, says=r"\[5, 4\], target \[2, 4\]")
wrong("multilabel_soft_margin_loss", i(5, 4), bits, error=TypeError, says="floating")
