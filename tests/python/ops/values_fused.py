"""OneFlow's fused names."""

import math

import numpy as np
from op_table import a, m, row, wrong


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))


def fast_gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def masked(x, mask, fill_value=0.0, scale=1.0, p=0.0):
    return softmax(np.where(mask, x * scale, fill_value))


def tril(x, diagonal=0, fill_value=0.0, scale=1.0):
    return np.where(np.tril(np.ones(x.shape[-2:], bool), diagonal), x * scale, fill_value)


def self_attention(x, head_size=8, alpha=1.0):
    s, b, n = x.shape
    q, k, v = np.split(x.reshape(s, b, n // (3 * head_size), 3 * head_size).transpose(1, 2, 0, 3), 3, -1)
    return alpha * q @ k.swapaxes(2, 3), v


row("fused_bias_add_gelu", lambda x, b, axis: gelu(x + b), a(4, 3), a(3), axis=1, rtol=1e-5)
row("fused_bias_add_gelu", lambda x, b, axis: gelu(x + b[:, None]), a(2, 4, 3), a(4), axis=-2, rtol=1e-5)
row("fused_bias_add_dropout", lambda x, b, p, axis: x + b, a(4, 3), a(3), p=0.0, axis=1)
row("fused_bias_add_dropout", lambda x, b, p, axis: np.zeros((4, 3)), a(4, 3), a(3), p=1.0, axis=1)
row("fused_fast_gelu_mul", lambda x, y: fast_gelu(x) * y, a(4, 3), a(4, 3), rtol=1e-5)
row("fused_scale_mask_softmax", masked, a(2, 4, 3), m(4, 3), fill_value=-1e4, scale=0.5)
row("fused_scale_mask_softmax", masked, a(2, 4, 3), m(2, 1, 3))
row(
    "fused_scale_mask_softmax_dropout",
    lambda *x, **k: (masked(*x, **k),) * 2,
    a(2, 4, 3),
    m(4, 3),
    fill_value=-1e4,
    scale=0.5,
    p=0.0,
)
row(
    "fused_bias_add_scale_mask_softmax_dropout",
    lambda x, b, mask, **k: (masked(x + b, mask, **k),) * 2,
    a(2, 4, 3),
    a(3),
    m(4, 3),
    fill_value=-5.0,
    p=0.0,
)
row("fused_scale_tril", tril, a(2, 4, 3))
row("fused_scale_tril", tril, a(2, 4, 3), 1, -2.0, 0.5)
row(
    "fused_scale_tril_softmax_mask_scale",
    lambda x, p, d, s, f: (softmax(tril(x, d, f, s)),) * 2,
    a(2, 4, 4),
    0.0,
    0,
    0.5,
    -1e4,
)
row("fused_self_attention", self_attention, a(3, 2, 24), 4, 0.5)
row("amp_white_identity", lambda x: x, a(2, 3))
row("amp_black_identity", lambda x: x, a(2, 3))
wrong("fused_bias_add_gelu", a(4, 3), a(4), axis=1, error=ValueError, says="one value")
wrong("fused_bias_add_gelu", a(4, 3), a(3), axis=2, error=IndexError, says="out of range")
wrong("fused_bias_add_dropout", a(4, 3), a(3), p=2.0, axis=1, error=ValueError, says="probability")
wrong("fused_scale_mask_softmax", a(4, 3), a(4, 3), error=TypeError, says="bool")
wrong("fused_self_attention", a(3, 2, 25), error=ValueError, says="hidden_states")
