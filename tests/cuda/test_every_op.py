"""Every op's example, with its tensors on a device: results and gradients are those of the CPU."""

import sys
from pathlib import Path

import numpy as np
import pytest

import holon as flow
from holon import _C

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from reference import examples, observe  # noqa: E402

TABLE = {op["name"]: op for op in _C.op_table() if op["example"]}
# Their results are memory as it was found.
UNDEFINED = {"empty", "empty_like", "new_empty"}
TOLERANCE = {flow.float64: 1e-12, flow.float32: 2e-6, flow.float16: 2e-3}


def varied(t):
    """Other values of the same kind, so that elements differ."""
    if not t.dtype.is_floating_point or t.dtype.itemsize == 1:  # float8 is not computed with
        return t
    fraction = (flow.arange(t.numel(), dtype=flow.float64) * 0.618 % 1).reshape(t.shape)
    return (t.detach() * (1 - 0.3 * fraction).to(t.dtype)).to(t.dtype)


def results(call, tensors, device, extra=None, gradients=True):
    """What the call returns with its tensors there, flat, and the gradients of its floating point tensors."""
    flow.manual_seed(0)
    there = {place: t.detach().to(device) for place, t in tensors.items()}
    leaves = [t.requires_grad_() for t in there.values() if gradients and t.dtype.is_floating_point]
    out = examples.flat(call.run(there, **(extra or {})))
    taking = [t for t in out if t.requires_grad]
    if not taking or not leaves:
        return out, []
    # Not all alike: what is divided by a sum would have gradients that are nothing but rounding.
    dy = [varied(flow.ones(*t.shape, dtype=t.dtype)).to(t.device) if t.is_local else flow.ones_like(t) for t in taking]
    return out, _C.grad(taking, leaves, dy, allow_unused=True)


def number_array(t):
    return t.detach().to("cpu").to(flow.float64).numpy()


def distance(a, b):
    """The largest difference, in units of the largest number of a and of each; NaNs and infinities must be the same."""
    special = ~np.isfinite(a)
    if a.size == 0:
        return 0
    if not np.array_equal(a[special], b[special], equal_nan=True):
        return np.inf
    a, b = np.where(special, 0, a), np.where(special, 0, b)
    return (abs(a - b) / np.maximum(np.maximum(abs(a), abs(a).max() / 2), 1e-300)).max()


def check(name, cpu, device, exact):
    """`exact`: gives the same on the CPU in float64.
    Where terms cancel, the device may be about as far from it as the CPU is."""
    assert [t is None for t in cpu] == [t is None for t in device], name
    for i, (a, b) in enumerate(zip(cpu, device)):
        if a is None:
            continue
        assert (b.shape, b.dtype) == (a.shape, a.dtype), f"{name}: result {i}"
        x, y = number_array(a), number_array(b)
        tolerance = TOLERANCE.get(a.dtype, 0)
        if distance(x, y) <= tolerance:
            continue
        if a.dtype in (flow.float32, flow.float16):
            z = number_array(exact()[i])
            if distance(z, y) <= tolerance + 3 * distance(z, x):
                continue
        raise AssertionError(f"{name}: result {i} is\n{y}\non the device and\n{x}\non the CPU")


def compare(name, dtype=None):
    op = TABLE[name]
    if name == "pin_memory":
        pytest.skip("it takes tensors of the CPU only: test_pinned.py")
    try:
        _, call = examples.run_op_example(op)
    except ValueError:
        pytest.skip("its example calls a method")
    if any(t.is_global for t in call.tensors().values()):
        pytest.skip("it takes global tensors")
    tensors = {place: varied(t) for place, t in call.tensors().items()}
    if dtype is not None:
        tensors = {place: t.to(dtype) if t.dtype == flow.float32 else t for place, t in tensors.items()}
    extra = {}
    if not tensors:
        if not any(a["name"] == "device" for a in op["args"]) or "device" in call.kwargs:
            pytest.skip("it takes neither tensors nor a device")
        extra = {"device": "cuda"}
    try:
        try:
            gradients = True
            out, dx = results(call, tensors, "cpu")
        except observe.REFUSED:
            gradients = False
            out, dx = results(call, tensors, "cpu", gradients=False)
    except observe.REFUSED:
        if dtype is None:
            raise
        pytest.skip("it does not take the dtype")
    there, there_dx = results(call, tensors, "cuda", extra, gradients)
    assert len(there) == len(out)
    if op["random"] or name in UNDEFINED or any(t.is_global for t in out):
        assert [(t.shape, t.dtype) for t in there] == [(t.shape, t.dtype) for t in out]
        return
    wide = {place: t.to(flow.float64) if t.dtype.is_floating_point else t for place, t in tensors.items()}
    check(name, out, there, lambda: results(call, wide, "cpu")[0])
    check(f"{name}: gradients", dx, there_dx, lambda: results(call, wide, "cpu")[1])


@pytest.mark.parametrize("name", TABLE)
def test_example(name):
    compare(name)


@pytest.mark.parametrize("name", TABLE)
def test_half(name):
    if not any(a["type"].startswith("Tensor") for a in TABLE[name]["args"]):
        pytest.skip("it takes no tensors")
    compare(name, flow.float16)
