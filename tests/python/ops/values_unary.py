"""Functions of one tensor."""

import numpy as np
from op_table import ALL_FLOATS, a, i, m, row, wrong

for op, function in {
    "neg": np.negative, "abs": np.abs, "sign": np.sign, "square": np.square, "exp": np.exp, "expm1": np.expm1,
    "sin": np.sin, "cos": np.cos, "floor": np.floor, "ceil": np.ceil, "round": np.round, "trunc": np.trunc,
}.items():
    for shape in ((5, 3), (), (0, 4)):
        row(op, function, a(*shape), dtypes=ALL_FLOATS)
for op, function in {"sqrt": np.sqrt, "log": np.log, "log2": np.log2, "log1p": np.log1p, "reciprocal": lambda x: 1 / x,
                     "rsqrt": lambda x: 1 / np.sqrt(x)}.items():
    row(op, function, a(5, 3, low=0.1, high=4), dtypes=ALL_FLOATS)
    row(op, lambda x, f=function: f(x.astype(np.float32)), i(5, low=1, high=9))
for op, function in {"isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite}.items():
    row(op, function, np.array([0.0, np.nan, np.inf, -np.inf]))
for op in ("neg", "abs", "sign", "square"):
    row(op, getattr(np, {"neg": "negative"}.get(op, op)), i(5, low=-4))
for sample in (m(5), i(5, high=2)):
    row("logical_not", np.logical_not, sample)
wrong("exp", error=TypeError, says="missing")
