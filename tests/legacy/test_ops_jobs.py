"""Every op of the older API in job functions, on one device and on two:
values are NumPy's, and gradients do not depend on how many devices there are."""

import pathlib
import sys

import numpy as np
import oneflow as flow
import oneflow.typing as tp
import pytest
from oneflow.single_client import math

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import op_cases as table  # noqa: E402
from test_ops_values import compare  # noqa: E402

DEVICES = (1, 2, 3)


def placeholder(array, devices):
    splits = array.shape[0] >= devices
    return tp.Numpy.Placeholder(array.shape, getattr(flow, array.dtype.name), batch_axis=0 if splits else None)


def arrays_in(value):
    if isinstance(value, np.ndarray):
        return [value]
    return [a for v in value for a in arrays_in(v)] if isinstance(value, list) else []


def with_blobs(value, blobs):
    if isinstance(value, np.ndarray):
        return next(blobs)
    return [with_blobs(v, blobs) for v in value] if isinstance(value, list) else value


def job_of(case, number, devices, gradients):
    """A job function of the case, and its arguments. gradients: a train job, which appends to that list."""
    given = [a for v in (*case.args, *case.kwargs.values()) for a in arrays_in(v)]

    def call(blobs):
        blobs = iter(blobs)
        args = [with_blobs(v, blobs) for v in case.args]
        return case.function(*args, **{k: with_blobs(v, blobs) for k, v in case.kwargs.items()})

    def predict(*blobs):
        return call(blobs)

    def train(*blobs):
        one = flow.get_variable(f"one{number}", [1], flow.float32, flow.ones_initializer())
        inputs = []
        for b in blobs:
            if b.dtype == flow.float32:
                b = math.multiply(b, one)
                flow.watch_diff(b, lambda value: gradients.append(value.numpy()))
            inputs.append(b)
        outputs = call(inputs)
        total = None
        for y in outputs if isinstance(outputs, (list, tuple)) else [outputs]:
            y = math.reduce_sum(math.square(y))
            total = y if total is None else math.add(total, y)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(total)
        return outputs

    names = [f"x{k}" for k in range(len(given))]
    kind, body = ("predict", predict) if gradients is None else ("train", train)
    scope = {"body": body, "types": [placeholder(a, devices) for a in given]}
    text = ", ".join(f"{n}: types[{k}]" for k, n in enumerate(names))
    exec(f"def {kind}_{number}({text}):\n    return body({', '.join(names)})", scope)
    return flow.global_function(type=kind)(scope[f"{kind}_{number}"]), given


def is_float(expected):
    return all(is_float(e) for e in expected) if isinstance(expected, list) else expected.dtype.kind == "f"


NO_GRADIENT = {
    "constant",
    "constant_scalar",
    "constant_like",
    "range",
    "one_hot",
    "zeros_like",
    "ones_like",
    "logical_not",
    "elem_cnt",
}


def differentiable(case):
    if case.training is not None:
        return False
    floats = any(a.dtype == np.float32 for v in (*case.args, *case.kwargs.values()) for a in arrays_in(v))
    return floats and is_float(case.expected) and case.function.__name__ not in NO_GRADIENT


def values(result):
    return [values(r) for r in result] if isinstance(result, (list, tuple)) else result.numpy()


_results = {}


def results(devices):
    """Of all cases, from one session: (value, value in a train job, gradients)."""
    if devices not in _results:
        flow.clear_default_session()
        flow.config.cpu_device_num(devices)
        flow.config.gpu_device_num(devices)
        jobs = []
        for number, case in enumerate(table.cases):
            gradients = [] if differentiable(case) else None
            made = [job_of(case, number, devices, None)]
            if gradients is not None:
                made.append(job_of(case, number, devices, gradients))
            jobs.append((made, gradients))
        _results[devices] = []
        for made, gradients in jobs:
            found = [values(job(*given).get()) for job, given in made]
            flow.sync_default_session()
            _results[devices].append((*found[:1], found[-1], gradients))
        flow.clear_default_session()
    return _results[devices]


def numbers_of(wanted):
    """The cases of each op, by its name."""
    found = {}
    for number, case in enumerate(table.cases):
        if wanted(case):
            found.setdefault(case.function.__name__, []).append(number)
    return found


VALUES, GRADIENTS = numbers_of(lambda case: not case.training), numbers_of(differentiable)


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("op", VALUES)
def test_values(op, devices):
    for number in VALUES[op]:
        compare(results(devices)[number][0], table.cases[number].expected)


@pytest.mark.parametrize("devices", DEVICES[1:])
@pytest.mark.parametrize("op", GRADIENTS)
def test_gradients(op, devices):
    for number in GRADIENTS[op]:
        (_, one, gradients), (_, more, others) = results(1)[number], results(devices)[number]
        compare(more, one)
        assert 0 < len(gradients) == len(others), table.cases[number]
        for a, b in zip(gradients, others):
            assert np.isfinite(a).all(), table.cases[number]
            np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-5, err_msg=str(table.cases[number]))
