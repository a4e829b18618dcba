"""Normalisation of rows and of channels on a device against the CPU's."""
import numpy as np
import pytest

import holon as flow

TOLERANCE = {"float32": 2e-6, "float64": 1e-13, "float16": 2e-3, "bfloat16": 1.6e-2}
ROWS = [((3, 7), 1), ((5, 64), 1), ((4, 257), 1), ((70, 1000), 1), ((3, 8193), 1), ((6, 4, 5), 2), ((2, 3, 130), 1), ((0, 5), 1), ((600, 8), 1), ((2, 8200), 1)]


def draw(shape, dtype, seed=0):
    return flow.tensor(np.random.default_rng(seed).uniform(-2, 3, shape), dtype=flow.float64).to(getattr(flow, dtype))


def close(got, want, scale=1.0):
    assert (got.device.type, got.dtype, tuple(got.shape)) == ("cuda", want.dtype, tuple(want.shape))
    t = TOLERANCE[str(want.dtype).split(".")[-1]]
    np.testing.assert_allclose(got.cpu().double().numpy(), want.double().numpy(), rtol=t, atol=t * scale)


# The results and gradients of run(*inputs) on both devices.
def both(native, run, *inputs, scale=1.0):
    results = []
    for device in ("cpu", "cuda"):
        args = [None if i is None else i.detach().to(device).requires_grad_() for i in inputs]
        with native():
            ys = run(*args)
            ys = ys if isinstance(ys, (tuple, list)) else (ys,)
            gs = flow.autograd.grad(ys, [a for a in args if a is not None], [draw(y.shape, str(y.dtype).split(".")[-1], 7 + k).to(device) for k, y in enumerate(ys)])
        results.append(([y.detach() for y in ys], list(gs)))
    for want, got in zip(*results[0:2]):
        for w, g in zip(want, got):
            close(g, w, scale)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_layer_norm(native, dtype):
    for shape, axes in ROWS:
        row = shape[-axes:]
        w, b = draw(row, dtype, 1), draw(row, dtype, 2)
        # Gradients of weights are sums over the rows.
        scale = 4 + shape[0] ** 0.5
        both(native, lambda x, w, b: flow.layer_norm(x, row, w, b), draw(shape, dtype), w, b, scale=scale)
    both(native, lambda x: flow.layer_norm(x, (40,)), draw((9, 40), dtype), scale=4)
    both(native, lambda x, w: flow.layer_norm(x, (40,), w), draw((9, 40), dtype), draw((40,), "float32", 1), scale=4)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_rms_norm(native, dtype):
    for shape, axes in ROWS:
        row = shape[-axes:]
        both(native, lambda x, w: flow.rms_norm(x, row, w), draw(shape, dtype), draw(row, dtype, 1), scale=4 + shape[0] ** 0.5)
    both(native, lambda x: flow.rms_norm(x, (40,)), draw((9, 40), dtype), scale=4)


def test_strides(native):
    x, w = draw((40, 6, 24), "float32"), draw((24,), "float32", 1)
    for take, n in ((lambda t: t.permute(1, 2, 0), 40), (lambda t: t[:, 1:, 1:], 23), (lambda t: t[:, :, ::2], 12), (lambda t: t.permute(1, 0, 2), 24)):
        both(native, lambda x: flow.layer_norm(take(x), (n,)), x, scale=4)
    both(native, lambda x, w: flow.layer_norm(x.permute(1, 0, 2), (24,), w), x, w, scale=20)


def test_far_from_zero(native):
    x = draw((5, 1000), "float32") + 1000
    for n, rows in ((1000, (5, 1000)), (5000, (1, 5000))):
        y = flow.layer_norm(x.reshape(rows).cuda(), (n,))
        want = flow.layer_norm(x.reshape(rows).double(), (n,))
        np.testing.assert_allclose(y.cpu().numpy(), want.numpy(), atol=2e-4)
