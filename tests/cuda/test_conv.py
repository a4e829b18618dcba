"""Convolutions on a cuda device against the CPU's."""

import numpy as np
import pytest

import holon as flow

F = flow.nn.functional
pytestmark = pytest.mark.usefixtures("own_kernels")  # test_dnn.py has the library's
FLOATS = [flow.float32, flow.float64, flow.float16, flow.bfloat16]
TOLERANCE = {flow.float32: 2e-6, flow.float64: 1e-14, flow.float16: 2e-3, flow.bfloat16: 1.6e-2}


def values(shape, dtype=flow.float32, seed=0):
    rng = np.random.default_rng([seed, *shape])
    return flow.tensor(rng.standard_normal(shape).astype(np.float32)).to(dtype)


def as_numpy(x):
    return x.detach().cpu().to(flow.float64).numpy()


def assert_same(got, wanted, factor=1.0):
    assert got.is_cuda and got.dtype == wanted.dtype and tuple(got.shape) == tuple(wanted.shape)
    a, b = as_numpy(got), as_numpy(wanted)
    scale = max(1.0, float(np.abs(b).max(initial=0)))
    np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE[wanted.dtype] * scale * factor)


def channels_last(x):
    order = (0, *range(2, x.ndim), 1)
    back = (0, x.ndim - 1, *range(1, x.ndim - 1))
    return x.permute(*order).contiguous().permute(*back)


def steps(x):
    """Of every second element along the last axis, which joins no other."""
    y = flow.zeros(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype, device=x.device)
    y[..., ::2] = x
    return y[..., ::2]


LAYOUTS = {"planar": lambda x: x.contiguous(), "channels last": channels_last, "steps": steps}

CASES = {
    "3x3": dict(x=(2, 4, 7, 6), w=(5, 4, 3, 3), padding=1),
    "1x1": dict(x=(2, 4, 5, 6), w=(3, 4, 1, 1)),
    "1x1 stride 2": dict(x=(2, 4, 5, 6), w=(3, 4, 1, 1), stride=2),
    "stride and dilation": dict(x=(2, 3, 11, 10), w=(4, 3, 3, 2), stride=(2, 1), padding=(2, 1), dilation=(2, 3)),
    "uneven padding": dict(x=(1, 2, 5, 6), w=(3, 2, 2, 3), padding=(0, 1, 2, 3)),
    "groups": dict(x=(2, 6, 5, 4), w=(4, 3, 3, 3), padding=1, groups=2),
    "depthwise": dict(x=(2, 8, 5, 5), w=(16, 1, 3, 3), padding=1, groups=8, stride=2),
    "groups of many": dict(x=(2, 12, 5, 4), w=(4, 6, 3, 3), padding=1, groups=2),
    "depthwise 5x5": dict(x=(2, 5, 9, 8), w=(5, 1, 5, 5), padding=2, groups=5),
    "depthwise 2x7 dilated": dict(
        x=(2, 3, 9, 20), w=(6, 1, 2, 7), padding=(1, 4, 0, 2), dilation=(3, 2), stride=(1, 2), groups=3
    ),
    "depthwise, many channels": dict(x=(1, 70, 4, 5), w=(70, 1, 3, 3), padding=1, groups=70),
    "depthwise, smaller than its kernel": dict(x=(2, 3, 2, 2), w=(3, 1, 3, 3), padding=1, groups=3),
    "1x1 groups": dict(x=(2, 8, 3, 3), w=(4, 2, 1, 1), groups=4),
    "wide channels": dict(x=(1, 16, 4, 4), w=(8, 16, 3, 3), padding=1),
    "one image, one channel": dict(x=(1, 1, 4, 4), w=(1, 1, 2, 2)),
    "the whole input": dict(x=(3, 2, 4, 4), w=(7, 2, 4, 4)),
}


def options(case):
    return {k: v for k, v in case.items() if k not in "xw"}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CASES)
def test_conv2d(native, name, layout, dtype):
    case = CASES[name]
    x, w, b = values(case["x"], dtype), values(case["w"], dtype, 1), values(case["w"][:1], dtype, 2)
    for bias in (None, b):
        wanted = F.conv2d(x, w, bias, **options(case))
        on_device = LAYOUTS[layout](x.cuda())
        with native():
            y = F.conv2d(on_device, w.cuda(), None if bias is None else bias.cuda(), **options(case))
        assert_same(y, wanted, 2)


def gradients(f, inputs, device, layout):
    xs = [x.to(device) for x in inputs]
    xs[0] = layout(xs[0])
    xs = [x.detach().requires_grad_() for x in xs]
    y = f(*xs)
    weights = values(tuple(y.shape), y.dtype, 9).to(device)
    y.backward(layout(weights) if y.numel() else weights)
    return [x.grad for x in xs]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CASES)
def test_gradients(native, name, layout, dtype):
    case = CASES[name]
    inputs = [values(case["x"], dtype), values(case["w"], dtype, 1), values(case["w"][:1], dtype, 2)]

    def f(x, w, b):
        return F.conv2d(x, w, b, **options(case))

    with native():
        for got, wanted in zip(
            gradients(f, inputs, "cuda", LAYOUTS[layout]), gradients(f, inputs, "cpu", LAYOUTS[layout])
        ):
            assert_same(got, wanted, 4)


OTHERS = {
    "conv1d": (F.conv1d, (2, 4, 9), (6, 2, 3), dict(stride=2, padding=1, groups=2)),
    "depthwise conv1d": (F.conv1d, (2, 4, 19), (8, 1, 4), dict(stride=2, padding=3, groups=4)),
    "depthwise conv3d": (
        F.conv3d,
        (2, 3, 4, 5, 6),
        (3, 1, 2, 3, 3),
        dict(padding=(1, 0, 2), groups=3, dilation=(1, 1, 2)),
    ),
    "depthwise conv_transpose2d": (F.conv_transpose2d, (2, 3, 5, 4), (3, 1, 3, 2), dict(stride=2, padding=1, groups=3)),
    "conv3d": (
        F.conv3d,
        (2, 4, 4, 5, 6),
        (6, 2, 2, 3, 3),
        dict(stride=(1, 2, 1), padding=(1, 0, 2), groups=2, dilation=(1, 1, 2)),
    ),
    "conv_transpose1d": (F.conv_transpose1d, (2, 4, 5), (4, 3, 3), dict(stride=2, padding=1, output_padding=1)),
    "conv_transpose2d": (F.conv_transpose2d, (2, 4, 5, 4), (4, 3, 3, 2), dict(stride=2, padding=1, groups=2)),
    "conv_transpose3d": (F.conv_transpose3d, (1, 2, 3, 3, 2), (2, 3, 2, 2, 2), dict(stride=2)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_axes(name):
    f, x, w, kwargs = OTHERS[name]
    x, w = values(x), values(w, seed=1)
    assert_same(f(x.cuda(), w.cuda(), **kwargs), f(x, w, **kwargs), 2)
    call = lambda x, w: f(x, w, **kwargs)  # noqa: E731
    for layout in (LAYOUTS["planar"], LAYOUTS["channels last"]):
        for got, wanted in zip(gradients(call, [x, w], "cuda", layout), gradients(call, [x, w], "cpu", layout)):
            assert_same(got, wanted, 4)


@pytest.mark.parametrize("layout", ["planar", "channels last"])
def test_gradients_of_depthwise_weights_are_sums_of_parts(layout):
    """More places than a block sums, twice the same to the last bit."""
    inputs = [values((3, 6, 70, 64)), values((6, 1, 3, 3), seed=1), values((6,), seed=2)]

    def f(x, w, b):
        return F.conv2d(x, w, b, padding=1, groups=6)

    first = gradients(f, inputs, "cuda", LAYOUTS[layout])
    for got, wanted in zip(first, gradients(f, inputs, "cpu", LAYOUTS[layout])):
        assert_same(got, wanted, 8)
    for a, b in zip(first, gradients(f, inputs, "cuda", LAYOUTS[layout])):
        assert np.array_equal(as_numpy(a), as_numpy(b))


@pytest.mark.parametrize("dtype, images", [(flow.float32, 4), (flow.float16, 8)], ids=str)
def test_images_by_turns(dtype, images):
    """Windows of more memory than is taken at once."""
    inputs = [values((images, 8, 110, 110), dtype), values((3, 8, 7, 7), dtype, 1)]

    def f(x, w):
        return F.conv2d(x, w, padding=3)

    assert_same(f(channels_last(inputs[0].cuda()), inputs[1].cuda()), f(*inputs), 2)
    for got, wanted in zip(gradients(f, inputs, "cuda", channels_last), gradients(f, inputs, "cpu", channels_last)):
        assert_same(got, wanted, 8)


@pytest.mark.parametrize(
    "x, w", [((0, 3, 5, 5), (4, 3, 3, 3)), ((2, 3, 2, 2), (4, 3, 2, 2)), ((2, 0, 5, 5), (4, 0, 3, 3))]
)
def test_empty(x, w):
    x, w, b = values(x), values(w), values(w[:1])
    assert_same(F.conv2d(x.cuda(), w.cuda(), b.cuda()), F.conv2d(x, w, b))


def test_the_setting():
    assert flow.backends.cudnn.allow_tf32 is False
    flow.backends.cudnn.allow_tf32 = True
    assert flow.backends.cudnn.allow_tf32
    flow.backends.cudnn.allow_tf32 = False
