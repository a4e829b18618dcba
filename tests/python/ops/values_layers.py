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


def attention(
    q,
    k,
    v,
    heads,
    out_weight,
    out_bias=None,
    in_weight=None,
    q_weight=None,
    k_weight=None,
    v_weight=None,
    in_bias=None,
    attn_mask=None,
    key_padding_mask=None,
    need_weights=False,
    average_attn_weights=True,
    is_causal=False,
):
    weights = np.split(in_weight, 3) if in_weight is not None else (q_weight, k_weight, v_weight)
    biases = np.split(np.zeros(3 * q.shape[-1]) if in_bias is None else in_bias, 3)
    parts = [
        (x @ w.T + b).reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)
        for x, w, b in zip((q, k, v), weights, biases, strict=True)
    ]
    scores = parts[0] @ parts[1].swapaxes(-1, -2) / np.sqrt(parts[0].shape[-1])
    if is_causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:])) > 0, scores, -np.inf)
    for mask in (attn_mask, None if key_padding_mask is None else key_padding_mask[:, None, None]):
        if mask is not None:
            scores = np.where(mask, -np.inf, scores) if mask.dtype == bool else scores + mask
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    y = (p @ parts[2]).swapaxes(1, 2).reshape(q.shape) @ out_weight.T + (0 if out_bias is None else out_bias)
    return [y, p.mean(1) if average_attn_weights else p] if need_weights else [y]


X, W, MASK = a(2, 3, 4), a(12, 4), np.triu(np.ones((3, 3), bool), 1)
for options in (
    {},
    {"in_bias": a(12)},
    {"need_weights": True},
    {"need_weights": True, "average_attn_weights": False},
    {"is_causal": True},
    {"is_causal": True, "need_weights": True},
    {"attn_mask": MASK},
    {"attn_mask": a(3, 3)},
    {"key_padding_mask": np.array([[False, False, True], [False] * 3]), "is_causal": True},
):
    row("multi_head_attention", attention, X, a(2, 3, 4), a(2, 3, 4), 2, a(4, 4), in_weight=W, rtol=2e-5, **options)
row(
    "multi_head_attention",
    attention,
    X,
    a(2, 5, 3),
    a(2, 5, 2),
    4,
    a(4, 4),
    a(4),
    q_weight=a(4, 4),
    k_weight=a(4, 3),
    v_weight=a(4, 2),
    rtol=2e-5,
)
for options, says in (
    ({}, "give in_weight, or"),
    ({"in_weight": a(8, 4)}, r"it must be \[12, 4\]"),
    ({"in_weight": W, "in_bias": a(4)}, r"it must be \[12\]"),
    ({"in_weight": W, "attn_mask": a(2, 3)}, "queries, keys"),
    ({"in_weight": W, "key_padding_mask": a(3, 3)}, r"\[batch, keys\] = \[2, 3\]"),
):
    wrong("multi_head_attention", X, X, X, 2, a(4, 4), error=ValueError, says=says, **options)
wrong("multi_head_attention", X, X, X, 3, a(4, 4), error=ValueError, says="divisible by 3 heads", in_weight=W)
wrong(
    "multi_head_attention",
    X,
    a(3, 4),
    X,
    2,
    a(4, 4),
    error=ValueError,
    says=r"must be \[n, length, width\]",
    in_weight=W,
)
wrong("multi_head_attention", X, a(2, 5, 4), X, 2, a(4, 4), error=ValueError, says="the same length", in_weight=W)


def distance(x1, x2, p=2.0, eps=1e-6, keepdim=False):
    return np.linalg.norm(x1 - x2 + eps, p, -1, keepdim)


for options in ({}, {"p": 1.0}, {"p": 3.0}, {"p": np.inf}, {"keepdim": True, "eps": 0.1}):
    row("pairwise_distance", distance, a(5, 3), a(5, 3, low=-3, high=3), rtol=1e-5, **options)
row("pairwise_distance", distance, a(2, 5, 3), a(3), rtol=1e-5)
row("pairwise_distance", distance, a(3), a(3, low=1, high=4), rtol=1e-5)
wrong("pairwise_distance", a(), a(3), error=ValueError, says="both need an axis")
wrong("pairwise_distance", i(3), a(3), error=TypeError, says="floating point")
wrong("pairwise_distance", a(3), a(3), -1.0, error=ValueError, says="order of a norm must be positive")


def response(x, size, alpha=1e-4, beta=0.75, k=1.0):
    padded = np.pad(x**2, ((0, 0), (size // 2, (size - 1) // 2)) + ((0, 0),) * (x.ndim - 2))
    around = sum(padded[:, j : j + x.shape[1]] for j in range(size)) / size
    return x / (k + alpha * around) ** beta


for size in (1, 2, 3, 5):
    row("local_response_norm", response, a(2, 4, 3), size, 0.5, rtol=1e-5)
row("local_response_norm", response, a(2, 4, 3, 2), 3, 0.5, 0.6, 2.0, rtol=1e-5)
row("local_response_norm", response, a(0, 4, 3), 3)
wrong("local_response_norm", a(2, 4), 3, error=ValueError, says="3 axes or more")
wrong("local_response_norm", a(2, 4, 3), 0, error=ValueError, says="must be at least 1")
