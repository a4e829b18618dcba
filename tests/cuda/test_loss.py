"""Cross-entropy and negative log likelihood on a device against the CPU's."""

import numpy as np
import pytest

import holon as flow

TOLERANCE = {"float32": 2e-6, "float64": 1e-13, "float16": 2e-3, "bfloat16": 1.6e-2}
SHAPES = [(5, 7), (33, 10), (6, 64), (4, 1001), (3, 9000), (1, 1)]


def draw(shape, dtype, seed=0):
    return flow.tensor(np.random.default_rng(seed).uniform(-4, 4, shape), dtype=flow.float64).to(getattr(flow, dtype))


def labels(rows, classes, dtype="int64", ignored=False):
    t = np.random.default_rng(5).integers(0, classes, rows)
    if ignored:
        t[::2] = -100
    return flow.tensor(t, dtype=flow.int64).to(getattr(flow, dtype))


def close(got, want, dtype):
    assert (got.device.type, got.dtype, tuple(got.shape)) == ("cuda", want.dtype, tuple(want.shape))
    np.testing.assert_allclose(
        got.cpu().double().numpy(), want.double().numpy(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )


# The losses and gradients of run(x, t) on both devices.
def both(native, run, x, t, dtype):
    results = []
    for device in ("cpu", "cuda"):
        a, b = x.detach().to(device).requires_grad_(), t.to(device)
        with native():
            y = run(a, b)
            (g,) = flow.autograd.grad(y, a, flow.full(tuple(y.shape), 0.75, dtype=y.dtype).to(device))
        results.append((y.detach(), g))
    for want, got in zip(*results):
        close(got, want, dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_cross_entropy(native, dtype):
    f = flow.nn.functional
    for rows, classes in SHAPES:
        for smoothing in (0.0, 0.1):
            x, t = (
                draw((rows, classes), dtype),
                labels(rows, classes, "int32" if smoothing else "int64", ignored=smoothing > 0 and rows > 1),
            )
            both(native, lambda x, t: f.cross_entropy(x, t, label_smoothing=smoothing, reduction="none"), x, t, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_nll(native, dtype):
    f = flow.nn.functional
    for rows, classes in SHAPES:
        both(
            native,
            lambda x, t: f.nll_loss(x, t, reduction="none"),
            draw((rows, classes), dtype),
            labels(rows, classes, ignored=rows > 1),
            dtype,
        )


def test_strides(native):
    f = flow.nn.functional
    x = draw((40, 30), "float32")
    both(native, lambda x, t: f.cross_entropy(x.t(), t, reduction="none"), x, labels(30, 40), "float32")
    both(native, lambda x, t: f.cross_entropy(x[:, 3:17], t, reduction="none"), x, labels(40, 14), "float32")
    both(native, lambda x, t: f.nll_loss(x.t(), t, reduction="none"), x, labels(30, 40), "float32")


def test_infinite_logits():
    f, inf = flow.nn.functional, float("inf")
    x = flow.tensor([[1.0, -inf, 2.0], [inf, 1.0, 0.0], [float("nan"), 0.0, 1.0], [80.0, -80.0, 0.0]])
    t = flow.tensor([0, 1, 2, 1])
    close(f.cross_entropy(x.cuda(), t.cuda(), reduction="none"), f.cross_entropy(x, t, reduction="none"), "float32")


@pytest.mark.parametrize("name", ["cross_entropy", "nll_loss"])
def test_a_wrong_target_raises(name):
    run = getattr(flow.nn.functional, name)
    x, t = draw((4, 5), "float32").cuda(), flow.tensor([0, 1, 5, 2]).cuda()
    with pytest.raises(IndexError, match="target 5"):
        run(x, t, reduction="none").cpu()
    # And nothing of it is left.
    run(x, flow.tensor([0, 1, 4, 2]).cuda(), reduction="none").cpu()
