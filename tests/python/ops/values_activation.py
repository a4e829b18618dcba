"""Activations."""

import math

import numpy as np
from op_table import ALL_FLOATS, a, i, row, wrong

erf = np.vectorize(math.erf, otypes=[float])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softplus(x):
    return np.logaddexp(x, 0)


PLAIN = {
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x),
    "mish": lambda x: x * np.tanh(softplus(x)),
    "quick_gelu": lambda x: x * sigmoid(1.702 * x),
    "logsigmoid": lambda x: -softplus(-x),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "hardsigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "hardswish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "relu6": lambda x: np.clip(x, 0, 6),
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
    "gelu": lambda x: x * 0.5 * (1 + erf(x / math.sqrt(2))),
}
for op, function in PLAIN.items():
    for shape in ((5, 3), (), (0, 4)):
        row(op, function, a(*shape, low=-4, high=7), dtypes=ALL_FLOATS)
# A difference: near 0 it has the digits that the terms leave.
row("tanhshrink", lambda x: x - np.tanh(x), a(5, 3, low=-4, high=7), dtypes=ALL_FLOATS)
row("relu", lambda x: np.maximum(x, 0), i(5, low=-4))
row(
    "gelu",
    lambda x, approximate: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    a(5, 3),
    approximate="tanh",
)
WITH_NUMBERS = [
    ("leaky_relu", lambda x, s=0.01: np.where(x > 0, x, s * x), (), (0.3,)),
    ("elu", lambda x, s=1.0: np.where(x > 0, x, s * np.expm1(x)), (), (0.7,)),
    ("celu", lambda x, s=1.0: np.where(x > 0, x, s * np.expm1(x / s)), (), (0.7,)),
    ("softplus", lambda x, b=1.0, t=20.0: np.where(x * b > t, x, softplus(x * b) / b), (), (2.0, 5.0)),
    ("hardtanh", lambda x, lo=-1.0, hi=1.0: np.clip(x, lo, hi), (), (-0.4, 0.7)),
    ("softshrink", lambda x, s=0.5: np.where(x > s, x - s, np.where(x < -s, x + s, 0)), (), (1.0,)),
    ("hardshrink", lambda x, s=0.5: np.where(np.abs(x) <= s, 0, x), (), (1.0,)),
    ("threshold", lambda x, t, v: np.where(x > t, x, v), (0.5, -7.0), (1.0, 2.0)),
]
for op, function, *all_numbers in WITH_NUMBERS:
    for numbers in all_numbers:
        row(op, function, a(5, 3, low=-4, high=4), *numbers, dtypes=ALL_FLOATS)
    wrong(op, i(3), *all_numbers[0], error=TypeError, says="floating point")
for op in ("gelu",):
    wrong(op, i(3), error=TypeError, says="floating point")
row("softplus", lambda x: np.array([0.0, 1e4, np.inf, np.nan]), np.array([-1e4, 1e4, np.inf, np.nan]))
row("logsigmoid", lambda x: np.array([-1e4, 0.0, np.nan]), np.array([-1e4, 1e4, np.nan]))

row("prelu", lambda x, w: np.where(x > 0, x, x * w), a(5, 3), a(3))
row("prelu", lambda x, w: np.where(x > 0, x, x * w[:, None]), a(2, 3, 4), a(3))
row("prelu", lambda x, w: np.where(x > 0, x, x * w), a(2, 3, 4), a(1))
row("prelu", lambda x, w: np.where(x > 0, x, x * w[0]), a(), a(1))
row("glu", lambda x: x[..., :2] * sigmoid(x[..., 2:]), a(3, 4))
row("glu", lambda x, dim: x[:3] * sigmoid(x[3:]), a(6, 2), 0)
wrong("glu", a(3, 3), error=ValueError, says="even number")
wrong("glu", a(4), 1, error=IndexError, says="dim|axis")
wrong("prelu", a(2, 3), a(4), error=ValueError, says="3 channels")
wrong("gelu", a(3), approximate="exact", error=ValueError, says="'none' or 'tanh'")
wrong("hardtanh", a(3), 1.0, -1.0, error=ValueError, says="above max_val")
wrong("softshrink", a(3), -1.0, error=ValueError, says="negative")
wrong("celu", a(3), 0.0, error=ValueError, says="alpha is 0")
wrong("softplus", a(3), 0.0, error=ValueError, says="beta is 0")
