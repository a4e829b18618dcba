"""Tensors from nothing. Their arguments are numbers: the dtype is given by name."""

import numpy as np
from op_table import a, i, m, no_truth, row, wrong

import holon as flow

F32 = np.float32
for op, value in {"zeros": 0, "ones": 1}.items():
    row(op, lambda *s, v=value: np.full(s, v, F32), 2, 3)
    row(op, lambda s, v=value: np.full(s, v, F32), (2, 0))
    row(op, lambda v=value: np.full((), v, F32))
    for name in ("bool", "uint8", "int8", "int32", "int64", "float64"):
        row(op, lambda s, dtype, v=value, n=name: np.full(s, v, n), (2, 3), dtype=getattr(flow, name))
    row(op, lambda s, dtype, v=value: np.full(s, v, F32), (2, 3), dtype=flow.float16, rtol=1e-3)
    row(op, lambda s, dtype, v=value: np.full(s, v, F32), [2, 3], dtype=flow.bfloat16)
    wrong(op, -1, error=ValueError, says="negative")
    wrong(op, 2.5, error=TypeError, says="size")
row("full", lambda s, v: np.full(s, v, F32), (2, 3), 0.5)
row("full", lambda s, v: np.full(s, v, np.int64), (2, 3), 7)
row("full", lambda s, v: np.full(s, v, bool), (2, 3), True)
row(
    "full", lambda size, fill_value, dtype: np.full(size, fill_value, np.int8), size=(2,), fill_value=7, dtype=flow.int8
)
wrong("full", (2, -1), 1, error=ValueError, says="negative")
for numbers in ((5,), (2, 9), (2, 9, 3), (9, 2, -2), (3, 3)):
    row("arange", lambda *n: np.arange(*n, dtype=np.int64), *numbers)
for numbers in ((5.0,), (0.5, 3), (0, 1, 0.25), (1.0, -1.0, -0.5)):
    row("arange", lambda *n: np.arange(*n).astype(F32), *numbers)
row("arange", lambda n, dtype: np.arange(n, dtype=np.int32), 5, dtype=flow.int32)
wrong("arange", 5, 1, error=ValueError, says="never ends")
wrong("arange", 0, 5, 0, error=ValueError, says="never ends")
for numbers in ((0, 1, 5), (-1.5, 2, 7), (3, 3, 2), (0, 1, 1), (0, 1, 0)):
    row("linspace", lambda *n: np.linspace(*n).astype(F32), *numbers)
    row("linspace", lambda *n, dtype: np.linspace(*n), *numbers, dtype=flow.float64)
    row("logspace", lambda *n: np.logspace(*n).astype(F32), *numbers)
row("logspace", lambda *n, base: np.logspace(*n, base=base).astype(F32), 0, 4, 5, base=2.0)
wrong("linspace", 0, 1, -1, error=ValueError, says="negative")
wrong("logspace", 0, 1, -1, error=ValueError, says="negative")
row("eye", lambda n: np.eye(n, dtype=F32), 3)
row("eye", lambda n, k, dtype: np.eye(n, k, dtype=np.int64), 3, 5, dtype=flow.int64)
wrong("eye", -1, error=ValueError, says="negative")
row("hann_window", lambda n: np.hanning(n + 1)[:-1].astype(F32), 7)
row("hann_window", lambda n, periodic: np.hanning(n).astype(F32), 7, False)
row("hann_window", lambda n: np.ones(1, F32), 1)
row("hann_window", lambda n: np.ones(0, F32), 0)
wrong("hann_window", -1, error=ValueError, says="negative")
wrong("hann_window", 5, dtype=flow.int64, error=TypeError, says="floating point")
for n, k, offset in ((3, 3, 0), (4, 2, 1), (2, 5, -1), (3, 3, -5), (3, 3, 5), (0, 3, 0)):
    row("tril_indices", lambda n, k, d: np.stack(np.tril_indices(n, d, k)), n, k, offset)
    row("triu_indices", lambda n, k, d: np.stack(np.triu_indices(n, d, k)), n, k, offset)
wrong("tril_indices", -1, 2, error=ValueError, says="negative")
wrong("triu_indices", 1, 2, dtype=flow.float32, error=TypeError, says="int64 or int32")

for sample in (a(5, 3), i(5), m(3)):
    row("zeros_like", np.zeros_like, sample)
    row("ones_like", np.ones_like, sample)
    row("zero", np.zeros_like, sample)
row("full_like", np.full_like, a(5, 3), 2.5)
row("full_like", lambda x, v, dtype: np.full_like(x, v, dtype=np.int64), a(5, 3), 2, dtype=flow.int64)
row("fill", np.full_like, a(5, 3), 2.5)
row("fill", np.full_like, i(5), 2)
no_truth("empty", "its values are unset: test_creation.py")
no_truth("empty_like", "its values are unset: test_creation.py")
for op in ("tril", "triu"):
    for diagonal in (0, 1, -1, 9, -9):
        row(op, getattr(np, op), a(4, 5), diagonal)
    row(op, getattr(np, op), a(2, 3, 4))
    row(op, getattr(np, op), i(3, 3))
    wrong(op, a(3), error=ValueError, says="two axes")

for op in (
    "rand",
    "randn",
    "randint",
    "randperm",
    "normal",
    "bernoulli",
    "multinomial",
    "rand_like",
    "randn_like",
    "randint_like",
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
):
    no_truth(op, "random: tests/cpp/ops/random_test.cpp and test_random.py")
wrong("rand", 2, dtype=flow.int64, error=TypeError, says="floating point")
wrong("randn", -2, error=ValueError, says="negative")
wrong("randint", 5, 5, (2,), error=ValueError, says="must be above")
wrong("randint", 0, 5, (-2,), error=ValueError, says="negative")
wrong("randint", 5, error=TypeError, says="no overload")
wrong("randperm", -1, error=ValueError, says="negative")
wrong("randperm", 257, dtype=flow.uint8, error=ValueError, says="up to 255")
wrong("randperm", 2050, dtype=flow.float16, error=ValueError, says="up to 2048")
wrong("bernoulli", i(3), error=TypeError, says="floating point")
wrong("bernoulli", a(3), 1.5, error=ValueError, says="probability")
wrong("multinomial", a(3, low=0.1), 4, error=ValueError, says="without replacement")
wrong("multinomial", a(3), 1, error=ValueError, says="negative")
wrong("multinomial", a(2, 3, 4), 1, error=ValueError, says="axes|axis")
wrong("multinomial", i(3), 1, error=TypeError, says="floating point")
wrong("normal", 0.0, -1.0, (2,), error=ValueError, says="std is -1")
wrong("dropout", a(3), 1.5, error=ValueError, says="probability")
wrong("dropout2d", a(3, 4), error=ValueError, says="axes")
