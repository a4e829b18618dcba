"""Functions of one tensor."""

import math

import numpy as np
from op_table import ALL_FLOATS, a, i, m, row, wrong

erf = np.vectorize(math.erf, otypes=[float])
erfc = np.vectorize(math.erfc, otypes=[float])

for op, function in {
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "square": np.square,
    "exp": np.exp,
    "expm1": np.expm1,
    "exp2": np.exp2,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.round,
    "trunc": np.trunc,
    "frac": lambda x: x - np.trunc(x),
    "erf": erf,
    "erfc": erfc,
    "sinc": np.sinc,
    "positive": np.positive,
}.items():
    for shape in ((5, 3), (), (0, 4)):
        row(op, function, a(*shape, low=-1.2, high=1.2) if op == "tan" else a(*shape), dtypes=ALL_FLOATS)
for op, function in {
    "sqrt": np.sqrt,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "reciprocal": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / np.sqrt(x),
}.items():
    row(op, function, a(5, 3, low=0.1, high=4), dtypes=ALL_FLOATS)
    row(op, lambda x, f=function: f(x.astype(np.float32)), i(5, low=1, high=9))
for op, function in {"asin": np.arcsin, "acos": np.arccos, "atanh": np.arctanh}.items():
    for shape in ((5, 3), (), (0, 4)):
        row(op, function, a(*shape, low=-0.9, high=0.9), dtypes=ALL_FLOATS)
row("acosh", np.arccosh, a(5, 3, low=1.1, high=9))
for op, function in {"sin": np.sin, "exp": np.exp, "erf": erf, "tan": np.tan, "exp2": np.exp2}.items():
    row(op, lambda x, f=function: f(x).astype(np.float32), i(5, low=-2, high=2))
row("exp", lambda x: np.exp(x.astype(np.float32)), m(5))

# erfinv undoes erf, out to the last bits of the tails.
row(
    "erfinv",
    lambda y: np.array(
        [0.0, 0.4769362762044699, -0.4769362762044699, 1.1630871536766743, 2.326753765513525, 3.458910737279500]
    ),
    np.array([0.0, 0.5, -0.5, 0.9, 0.999, 0.999999]),
    dtypes=("float64",),
)
row("erfinv", lambda y: np.array([np.inf, -np.inf, np.nan, 0.0]), np.array([1.0, -1.0, 1.5, 0.0]))
row(
    "erfinv",
    lambda y: np.array([5.0e-9 * math.sqrt(math.pi) / 2, -1e-300]),
    np.array([5.0e-9, -1e-300 * 2 / math.sqrt(math.pi)]),
    dtypes=("float64",),
)

for op, function in {"isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite}.items():
    row(op, function, np.array([0.0, np.nan, np.inf, -np.inf]))
    row(op, function, i(5))
for op in ("neg", "abs", "sign", "square", "floor", "ceil", "round", "trunc"):
    for dtype in ("int8", "int32", "int64"):
        row(
            op,
            lambda x, f=getattr(np, {"neg": "negative"}.get(op, op)): f(x).astype(x.dtype),
            i(5, low=-4, dtype=dtype),
        )
for op, function in {"sign": np.sign, "abs": np.abs, "relu": lambda x: np.where(x < 0, 0, x)}.items():
    row(op, function, np.array([np.nan, np.inf, -np.inf, -0.0]))
for sample in (m(5), i(5, high=2)):
    row("logical_not", np.logical_not, sample)
for sample in (m(5), i(5, low=-4), i(5, dtype="uint8"), i(5, dtype="int8")):
    row("bitwise_not", np.bitwise_not, sample)

row("logit", lambda x, eps=None: np.log(x / (1 - x)), a(5, 3, low=0.1, high=0.9))
row(
    "logit",
    lambda x, eps: np.log(np.clip(x, eps, 1 - eps) / (1 - np.clip(x, eps, 1 - eps))),
    a(5, 3, low=-0.5, high=1.5),
    0.2,
)
odd = np.array([np.nan, np.inf, -np.inf, 1.5])
row(
    "nan_to_num",
    lambda x: np.array([0, np.finfo(np.float32).max, np.finfo(np.float32).min, 1.5]),
    odd,
    dtypes=("float32",),
)
row("nan_to_num", lambda x: np.nan_to_num(x), odd, dtypes=("float64",))
row("nan_to_num", lambda x, *_: np.array([1, 2, 3, 1.5]), odd, 1.0, 2.0, 3.0)
row("nan_to_num", lambda x: x, i(5))

wrong("exp", error=TypeError, says="missing")
wrong("neg", m(3), error=TypeError, says="bool")
wrong("bitwise_not", a(3), error=TypeError, says="integers and bools")
wrong("sin", "x", error=TypeError, says="must be Tensor")
wrong("exp", a(2), a(2), error=TypeError, says="positional")
