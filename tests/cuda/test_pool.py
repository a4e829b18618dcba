"""Pooling, resampling, unfold and fold on a cuda device."""

import numpy as np
import pytest

import holon as flow

F = flow.nn.functional


def both(fn, *shapes, dtype=flow.float32, native, tol=None, channels_last=False, gradient=True, ties=False):
    """fn of random tensors on both devices: values and gradients agree."""
    results = []
    for device in ("cpu", "cuda"):
        rng = np.random.default_rng(5)
        xs = []
        for shape in shapes:
            v = rng.integers(0, 4, shape) if ties else rng.standard_normal(shape) * 4
            x = flow.tensor(v, dtype=dtype).to(device)
            if channels_last:
                x = x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
            xs.append(x.requires_grad_() if gradient else x)
        if device == "cuda":
            with native():
                ys = fn(*xs)
                ys = ys if isinstance(ys, (tuple, list)) else [ys]
        else:
            ys = fn(*xs)
            ys = ys if isinstance(ys, (tuple, list)) else [ys]
        found = list(ys)
        if gradient:
            dys = [
                flow.tensor(rng.standard_normal(tuple(y.shape)), dtype=y.dtype).to(device)
                for y in ys
                if y.requires_grad
            ]
            found += flow.autograd.grad([y for y in ys if y.requires_grad], xs, dys)
        results.append([r.detach().cpu().to(flow.float64).numpy() for r in found])
    tol = tol or {flow.float64: 1e-12, flow.float32: 2e-6, flow.float16: 2e-3, flow.bfloat16: 1.6e-2}.get(dtype, 0)
    for a, b in zip(*results):
        np.testing.assert_allclose(b, a, rtol=tol, atol=tol * 4)


MAX = [
    dict(kernel_size=2),
    dict(kernel_size=3, stride=2, padding=1),
    dict(kernel_size=3, stride=1, padding=1),
    dict(kernel_size=(2, 3), stride=(3, 1)),
    dict(kernel_size=3, stride=2, padding=1, dilation=2),
    dict(kernel_size=3, stride=2, ceil_mode=True),
]
AVG = [
    dict(kernel_size=2),
    dict(kernel_size=3, stride=2, padding=1),
    dict(kernel_size=3, stride=1, padding=1, count_include_pad=False),
    dict(kernel_size=(2, 3), stride=(3, 1)),
    dict(kernel_size=3, stride=2, padding=1, ceil_mode=True, divisor_override=5),
    dict(kernel_size=(9, 11)),
]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("options", MAX, ids=str)
def test_max_pool2d(options, channels_last, native):
    both(lambda x: F.max_pool2d(x, **options), (2, 3, 9, 11), native=native, channels_last=channels_last)
    both(
        lambda x: F.max_pool2d(x, return_indices=True, **options)[0],
        (2, 3, 9, 11),
        native=native,
        channels_last=channels_last,
    )


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("options", AVG, ids=str)
def test_avg_pool2d(options, channels_last, native):
    both(lambda x: F.avg_pool2d(x, **options), (2, 3, 9, 11), native=native, channels_last=channels_last)


@pytest.mark.parametrize("size", [1, 2, (3, 5), (9, 11), (12, 4)], ids=str)
def test_adaptive(size, native):
    for channels_last in (False, True):
        both(lambda x: F.adaptive_avg_pool2d(x, size), (2, 3, 9, 11), native=native, channels_last=channels_last)
        both(lambda x: F.adaptive_max_pool2d(x, size), (2, 3, 9, 11), native=native, channels_last=channels_last)


def test_one_and_three_axes(native):
    both(lambda x: F.max_pool1d(x, 3, 2), (2, 3, 20), native=native)
    both(lambda x: F.avg_pool1d(x, 3, 2), (2, 3, 20), native=native)
    both(lambda x: F.max_pool3d(x, 2), (1, 2, 4, 6, 5), native=native)
    both(lambda x: F.avg_pool3d(x, 2), (1, 2, 4, 6, 5), native=native)
    both(lambda x: F.adaptive_avg_pool1d(x, 7), (2, 3, 20), native=native)


@pytest.mark.parametrize("dtype", [flow.float64, flow.float16, flow.bfloat16], ids=str)
def test_dtypes(dtype, native):
    both(lambda x: F.max_pool2d(x, 3, 2, 1), (2, 3, 9, 11), dtype=dtype, native=native)
    both(
        lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
        (2, 3, 9, 11),
        dtype=dtype,
        native=native,
        gradient=False,
        ties=True,
    )
    both(lambda x: F.avg_pool2d(x, 3, 2, 1), (2, 3, 9, 11), dtype=dtype, native=native)
    both(lambda x: F.adaptive_avg_pool2d(x, (2, 3)), (2, 3, 9, 11), dtype=dtype, native=native)


def test_maxima_with_nan_and_ties(native):
    x = np.zeros((1, 2, 6, 6), "f")
    x[0, 0, 2, 3] = np.nan
    x[0, 1, 1, 1] = -np.inf
    a, b = flow.tensor(x), flow.tensor(x).cuda()
    with native():
        y = F.max_pool2d(b, 3, 3)
    np.testing.assert_array_equal(y.cpu().numpy(), F.max_pool2d(a, 3, 3).numpy())


def test_strided_inputs(native):
    both(lambda x: F.max_pool2d(x.transpose(0, 1)[:, :, ::2, 1:], 2), (3, 2, 9, 11), native=native)
    both(lambda x: F.avg_pool2d(x.transpose(2, 3), 2).transpose(1, 2), (3, 2, 9, 11), native=native)


def test_window_in_the_padding_fails():
    with pytest.raises(ValueError, match="padding .* is more than half of the kernel"):
        flow.max_pool2d(flow.ones(1, 1, 1, 1, device="cuda"), 1, 1, 2)


def test_no_images(native):
    both(lambda x: F.max_pool2d(x, 2), (0, 3, 8, 8), native=native)
    both(lambda x: F.avg_pool2d(x, 2), (0, 3, 8, 8), native=native)


MODES = [
    dict(size=(5, 7), mode="nearest"),
    dict(size=(17, 13), mode="nearest"),
    dict(scale_factor=2.0, mode="nearest"),
    dict(size=(17, 13), mode="bilinear", align_corners=True),
    dict(size=(4, 5), mode="bilinear", align_corners=False),
    dict(scale_factor=2.0, mode="bicubic", align_corners=False),
    dict(size=(4, 20), mode="area"),
]


@pytest.mark.parametrize("options", MODES, ids=str)
def test_interpolate(options, native):
    both(lambda x: F.interpolate(x, **options), (2, 3, 9, 11), native=native, tol=4e-6)
    if options["mode"] != "area":
        both(lambda x: F.interpolate(x.transpose(2, 3), **options), (2, 3, 9, 11), native=native, tol=4e-6)


@pytest.mark.parametrize("dtype", [flow.float64, flow.float16, flow.bfloat16], ids=str)
def test_interpolate_dtypes(dtype, native):
    both(lambda x: F.interpolate(x, size=(5, 7), mode="nearest"), (2, 3, 9, 11), dtype=dtype, native=native)
    both(lambda x: F.interpolate(x, size=(15, 7), mode="bilinear"), (2, 3, 9, 11), dtype=dtype, native=native)


def test_interpolate_by_a_long_table(native):
    both(lambda x: F.interpolate(x, size=6000, mode="linear"), (2, 3, 900), native=native, tol=4e-6)
    both(lambda x: F.interpolate(x, size=20, mode="linear"), (2, 0, 900), native=native)


FOLDS = [
    dict(kernel_size=3),
    dict(kernel_size=(2, 3), stride=2, padding=1),
    dict(kernel_size=2, dilation=2, padding=(0, 3), stride=(1, 2)),
]


@pytest.mark.parametrize("options", FOLDS, ids=str)
def test_unfold_and_fold(options, native):
    both(lambda x: F.unfold(x, **options), (2, 3, 8, 9), native=native)
    both(lambda x: F.unfold(x.transpose(2, 3), **options), (2, 3, 8, 9), native=native, dtype=flow.bfloat16)
    n = F.unfold(flow.zeros(1, 1, 8, 9), **options).shape
    both(lambda x: F.fold(x, (8, 9), **options), (2, 2 * n[1], n[2]), native=native)
    both(
        lambda x: F.fold(x.transpose(1, 2), (8, 9), **options),
        (2, n[2], 2 * n[1]),
        native=native,
        dtype=flow.float16,
        tol=4e-3,
    )
