"""Normalisation of rows and of channels on a device against the CPU's."""

import numpy as np
import pytest

import holon as flow

TOLERANCE = {"float32": 2e-6, "float64": 1e-13, "float16": 2e-3, "bfloat16": 1.6e-2}
ROWS = [
    ((3, 7), 1),
    ((5, 64), 1),
    ((4, 257), 1),
    ((70, 1000), 1),
    ((3, 8193), 1),
    ((6, 4, 5), 2),
    ((2, 3, 130), 1),
    ((0, 5), 1),
    ((600, 8), 1),
    ((2, 8200), 1),
]


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
            gs = flow.autograd.grad(
                ys,
                [a for a in args if a is not None],
                [draw(y.shape, str(y.dtype).split(".")[-1], 7 + k).to(device) for k, y in enumerate(ys)],
            )
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
        both(
            native,
            lambda x, w: flow.rms_norm(x, row, w),
            draw(shape, dtype),
            draw(row, dtype, 1),
            scale=4 + shape[0] ** 0.5,
        )
    both(native, lambda x: flow.rms_norm(x, (40,)), draw((9, 40), dtype), scale=4)


def test_strides(native):
    x, w = draw((40, 6, 24), "float32"), draw((24,), "float32", 1)
    for take, n in (
        (lambda t: t.permute(1, 2, 0), 40),
        (lambda t: t[:, 1:, 1:], 23),
        (lambda t: t[:, :, ::2], 12),
        (lambda t: t.permute(1, 0, 2), 24),
    ):
        both(native, lambda x: flow.layer_norm(take(x), (n,)), x, scale=4)
    both(native, lambda x, w: flow.layer_norm(x.permute(1, 0, 2), (24,), w), x, w, scale=20)


def test_far_from_zero(native):
    x = draw((5, 1000), "float32") + 1000
    for n, rows in ((1000, (5, 1000)), (5000, (1, 5000))):
        y = flow.layer_norm(x.reshape(rows).cuda(), (n,))
        want = flow.layer_norm(x.reshape(rows).double(), (n,))
        np.testing.assert_allclose(y.cpu().numpy(), want.numpy(), atol=2e-4)


CHANNELS = [(4, 6, 5, 3), (3, 8, 4, 4), (2, 4, 40), (16, 5), (2, 64, 3, 8), (70, 12), (300, 3, 2)]


def channels_last(t):
    order = [0, *range(2, t.ndim), 1]
    return t.permute(order).contiguous().permute([0, t.ndim - 1, *range(1, t.ndim - 1)])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("last", [False, True])
def test_batch_norm(native, dtype, last):
    # Where the weights' gradients lose digits by their size.
    for shape in CHANNELS:
        c = shape[1]
        change = channels_last if last and len(shape) > 2 else lambda t: t
        both(
            native,
            lambda x, w, b: flow.batch_norm(change(x), None, None, w, b, True),
            draw(shape, dtype),
            draw((c,), dtype, 1),
            draw((c,), dtype, 2),
            scale=4 + (np.prod(shape) / c) ** 0.5,
        )


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_batch_norm_running_statistics(native, dtype):
    x, w, b = draw((4, 6, 5, 3), dtype), draw((6,), "float32", 1), draw((6,), "float32", 2)
    kept = []
    for device in ("cpu", "cuda"):
        mean, var = flow.zeros(6).to(device), flow.ones(6).to(device)
        with native():
            y = flow.batch_norm(x.to(device), mean, var, w.to(device), b.to(device), True, 0.3)
        z = flow.batch_norm(x.to(device), mean, var, w.to(device), b.to(device), False)
        kept.append((mean, var, y, z))
    for want, got in zip(*kept):
        close(got, want, 4)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("last", [False, True])
def test_group_norm(native, dtype, last):
    for shape in CHANNELS:
        c = shape[1]
        for groups in {1, c, 2 if c % 2 == 0 else 1}:
            if np.prod(shape[2:]) * c // groups < 3:
                continue
            change = channels_last if last and len(shape) > 2 else lambda t: t
            both(
                native,
                lambda x, w, b: flow.group_norm(change(x), groups, w, b),
                draw(shape, dtype),
                draw((c,), dtype, 1),
                draw((c,), dtype, 2),
                scale=8 + (np.prod(shape) / c) ** 0.5,
            )
    both(native, lambda x: flow.group_norm(x[:, :, 1:], 2), draw((3, 4, 9), dtype), scale=8)
    both(native, lambda x: flow.instance_norm(x), draw((3, 4, 9), dtype), scale=8)
