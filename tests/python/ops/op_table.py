"""The tables of values: for every public op, calls whose results NumPy knows, and wrong calls with what the error says.

A family's file (values_<family>.py) declares rows; test_values.py runs them all and fails for an op without a row. In a
row's arguments a float64 array stands for a tensor of each dtype of the row; other arrays keep their dtype.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

FLOATS = ("float32", "float64")
HALVES = ("float16", "bfloat16")
ALL_FLOATS = FLOATS + HALVES


@dataclasses.dataclass
class Row:
    op: str
    numpy: Callable[..., Any]
    args: tuple
    kwargs: dict
    dtype: str
    rtol: float | None
    method: bool  # called as Tensor.op, not holon.op

    def __str__(self) -> str:
        shapes = [_text(a) for a in self.args] + [f"{k}={_text(v)}" for k, v in self.kwargs.items()]
        return f"{self.op}({', '.join(shapes)}) {self.dtype}"


@dataclasses.dataclass
class Wrong:
    op: str
    args: tuple
    kwargs: dict
    error: type[BaseException]
    says: str

    def __str__(self) -> str:
        return f"{self.op}({', '.join(_text(a) for a in self.args)}) {self.error.__name__}"


rows: list[Row] = []
wrongs: list[Wrong] = []
exempt: dict[str, str] = {}  # op: why NumPy has no truth for it


def row(
    op: str,
    numpy: Callable[..., Any],
    *args: Any,
    dtypes: tuple[str, ...] = FLOATS,
    rtol: float | None = None,
    method: bool = False,
    **kwargs: Any,
) -> None:
    """One call, and what NumPy gives for it: numpy(*args, **kwargs) of the arrays in float64
    (rounded to the dtype first).

    The result may be a tuple or a list. Only the first dtype is used when no argument is a float64 array.
    """
    floating = any(_is_free(a) for a in (*args, *kwargs.values()))
    for dtype in dtypes if floating else dtypes[:1]:
        rows.append(Row(op, numpy, args, kwargs, dtype, rtol, method))


def wrong(op: str, *args: Any, error: type[BaseException], says: str, **kwargs: Any) -> None:
    """One call that must raise `error` with a message that names the op and matches the pattern `says`."""
    wrongs.append(Wrong(op, args, kwargs, error, says))


def no_truth(op: str, why: str) -> None:
    """An op that a test of its own covers."""
    exempt[op] = why


def a(*shape: int, low: float = -2, high: float = 2) -> np.ndarray:
    """A float64 array of distinct values in no order, the same at every call:
    away from kinks at integers and halves."""
    n = int(np.prod(shape))
    v = low + (high - low) * (np.arange(n) + 0.37) / max(n, 1)
    return np.random.default_rng(n).permutation(v).reshape(shape)


def i(*shape: int, low: int = 0, high: int = 5, dtype: str = "int64") -> np.ndarray:
    """Integers of [low, high)."""
    return np.random.default_rng(int(np.prod(shape)) + high).integers(low, high, shape).astype(dtype)


def m(*shape: int) -> np.ndarray:
    """A mask."""
    return i(*shape, high=2).astype(bool)


def _is_free(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_is_free(v) for v in value)
    return isinstance(value, np.ndarray) and value.dtype == np.float64


def _text(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else repr(value)
