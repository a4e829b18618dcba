"""Every public op against NumPy, and its wrong calls."""

import importlib
import pathlib
import re
import sys

import numpy as np
import pytest

import holon as flow

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))
import op_table as table  # noqa: E402

for file in sorted(HERE.glob("values_*.py")):
    importlib.import_module(file.stem)

TOLERANCE = {"float64": 1e-12, "float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2}


def tensors(value, dtype):
    if isinstance(value, np.ndarray):
        tensor = flow.tensor(value)
        return tensor.to(getattr(flow, dtype)) if value.dtype == np.float64 else tensor
    if isinstance(value, list | tuple):
        return type(value)(tensors(v, dtype) for v in value)
    return value


def rounded(value, dtype):
    """What NumPy is given: float64 arrays with the values that the dtype can hold."""
    if isinstance(value, np.ndarray) and value.dtype == np.float64:
        return flow.tensor(value).to(getattr(flow, dtype)).to(flow.float64).numpy()
    if isinstance(value, list | tuple):
        return type(value)(rounded(v, dtype) for v in value)
    return value


def function_of(row, args):
    """The function or method, and the arguments left for it."""
    if getattr(row, "method", False) or not hasattr(flow, row.op):
        if hasattr(flow.nn.functional, row.op):
            return getattr(flow.nn.functional, row.op), args
        return getattr(args[0], row.op), args[1:]
    return getattr(flow, row.op), args


def compare(got, want, row):
    if isinstance(want, list | tuple):
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            compare(g, w, row)
        return
    if not isinstance(got, flow.Tensor):
        assert got == want
        return
    want = np.asarray(want)
    assert tuple(got.shape) == want.shape
    if np.issubdtype(want.dtype, np.floating):
        assert got.dtype.is_floating_point, f"NumPy gives {want.dtype}, the result is {got.dtype}"
        name = str(got.dtype).split(".")[-1]
        rtol = row.rtol or TOLERANCE[name]
        got = got.to(flow.float64).numpy()
        largest = max((float(np.abs(w)) for w in want.ravel() if np.isfinite(w)), default=1.0)
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * max(largest, 1e-3))
    else:
        got = got.numpy()
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("row", table.rows, ids=str)
def test_equals_numpy(row):
    function, args = function_of(row, tensors(row.args, row.dtype))
    got = function(*args, **{k: tensors(v, row.dtype) for k, v in row.kwargs.items()})
    with np.errstate(all="ignore"):
        want = row.numpy(*rounded(row.args, row.dtype), **{k: rounded(v, row.dtype) for k, v in row.kwargs.items()})
    compare(got, want, row)


@pytest.mark.parametrize("wrong", table.wrongs, ids=str)
def test_wrong_call_says_what_is_wrong(wrong):
    function, args = function_of(wrong, tensors(wrong.args, "float32"))
    with pytest.raises(wrong.error) as raised:
        function(*args, **{k: tensors(v, "float32") for k, v in wrong.kwargs.items()})
    assert re.search(wrong.says, str(raised.value)), f"{raised.value} does not say {wrong.says}"
    assert wrong.op.rstrip("_") in str(raised.value)


def test_every_public_op_has_a_row():
    public = {op["public_name"] for op in flow._C.op_table() if op["function"] or op["method"]}
    covered = {r.op for r in table.rows} | set(table.exempt)
    assert public - covered == set(), "ops without a row in values_<family>.py"
