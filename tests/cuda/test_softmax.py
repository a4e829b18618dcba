"""Softmax, log softmax and log_sum_exp on a device against the CPU's."""

import numpy as np
import pytest

import holon as flow

TOLERANCE = {"float32": 2e-6, "float64": 1e-13, "float16": 1.5e-3, "bfloat16": 1e-2}
# Short and long rows, rows of no whole units, one that no group's registers hold, columns.
SHAPES = [
    ((3, 7), 1),
    ((5, 64), -1),
    ((4, 257), 1),
    ((2, 1000), 1),
    ((2, 9001), 1),
    ((1, 1), 0),
    ((0, 5), 1),
    ((5,), 0),
    ((2, 9, 40), 1),
    ((3, 300, 33), 1),
    ((2, 3, 4, 5), 0),
    ((2, 2, 8200), 1),
]


def draw(shape, dtype, seed=0, low=-4, high=4):
    x = np.random.default_rng(seed).uniform(low, high, shape)
    return flow.tensor(x, dtype=flow.float64).to(getattr(flow, dtype))


def close(got, want, dtype):
    assert got.device.type == "cuda" and got.dtype == want.dtype and got.shape == want.shape
    np.testing.assert_allclose(
        got.cpu().double().numpy(), want.double().numpy(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_forward_and_gradient(native, dtype, name):
    run = getattr(flow, name)
    for shape, axis in SHAPES if dtype in ("float32", "bfloat16") else SHAPES[:9]:
        results = []
        for device in ("cpu", "cuda"):
            x = draw(shape, dtype).to(device).requires_grad_()
            dy = draw(shape, dtype, 1).to(device)
            with native():
                y = run(x, axis)
                (g,) = flow.autograd.grad(y, x, dy)
            results.append((y.detach(), g))
        for want, got in zip(*results):
            close(got, want, dtype)


def test_strides(native):
    x = draw((6, 40, 24), "float32")
    for take in (
        lambda t: t.permute(2, 0, 1),
        lambda t: t[:, 3:30, 1:],
        lambda t: t[:, ::3],
        lambda t: t[:, :1].expand(6, 9, 24),
    ):
        for axis in range(3):
            with native():
                y = flow.softmax(take(x.cuda()), axis)
            close(y, flow.softmax(take(x), axis), "float32")


def test_infinities_and_nans():
    inf, nan = float("inf"), float("nan")
    rows = [[1.0, -inf, 2.0], [-inf, -inf, -inf], [inf, 1.0, 2.0], [nan, 1.0, -inf], [1000.0, -1000.0, 0.0]]
    for width in (3, 9001):
        x = flow.tensor([r + [r[-1]] * (width - 3) for r in rows])
        for run in (flow.softmax, flow.log_softmax):
            close(run(x.cuda(), -1), run(x, -1), "float32")
        close(flow.logsumexp(x.cuda(), -1), flow.logsumexp(x, -1), "float32")
