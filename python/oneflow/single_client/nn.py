"""flow.nn of the older API, as far as it differs from holon.nn: functions, where that has modules."""

from holon import _C
from holon.nn import functional as _F

from . import windows
from .axes import one_axis, where_is
from .losses import *  # noqa: F403
from .math import l2_normalize  # noqa: F401
from .record import computes, op
from .windows import *  # noqa: F403

_ops = _C.ops


# Activations


def _activation(name, of=None):
    holon_op = _ops[of or name]

    def function(x):
        return holon_op(x)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = holon_op.__doc__
    return op(function)


relu, relu6, selu, softsign, softplus, mish, gelu, sigmoid, tanh = map(
    _activation, ("relu", "relu6", "selu", "softsign", "softplus", "mish", "gelu", "sigmoid", "tanh")
)
swish, hardswish, hardsigmoid, logsigmoid = (
    _activation(name, of)
    for name, of in (
        ("swish", "silu"),
        ("hardswish", "hardswish"),
        ("hardsigmoid", "hardsigmoid"),
        ("logsigmoid", "logsigmoid"),
    )
)


@op
def leaky_relu(x, alpha=0.2):
    """x where it is positive, else alpha * x."""
    return _ops["leaky_relu"](x, alpha)


@op
def elu(x, alpha=1.0):
    """x where it is positive, else alpha (exp(x) - 1)."""
    return _ops["elu"](x, alpha)


@op
def hardtanh(x, min_val=-1.0, max_val=1.0):
    """x within [min_val, max_val]."""
    return _ops["hardtanh"](x, min_val, max_val)


@op
def softmax(logits, axis=None):
    """exp(logits) over its sum along axis; None is the last."""
    return _ops["softmax"](logits, one_axis(-1 if axis is None else axis, logits.ndim, "softmax"))


@op
def logsoftmax(logits, axis=None):
    """The logarithm of softmax."""
    return _ops["log_softmax"](logits, one_axis(-1 if axis is None else axis, logits.ndim, "logsoftmax"))


# Biases and normalisation


@op
def bias_add(value, bias, data_format=None):
    """value plus one bias for each channel: along axis 1, or the last if data_format is "N...C"."""
    if data_format is not None and (
        not isinstance(data_format, str) or data_format[:1].upper() != "N" or "C" not in data_format.upper()
    ):
        raise ValueError(f"bias_add: data_format is {data_format!r}; it must be 'NC...' or 'N...C'.")
    last = data_format is not None and data_format.upper().endswith("C") and len(data_format) > 2
    axis = value.ndim - 1 if last else 1
    if bias.ndim != 1 or value.ndim < 2 or bias.shape[0] != value.shape[axis]:
        raise ValueError(f"bias_add: the bias {list(bias.shape)} does not fit axis {axis} of {list(value.shape)}.")
    return value + bias.reshape(-1, *[1] * (value.ndim - 1 - axis))


@op
def moments(x, axes, keepdims=False):
    """The mean and the variance, of the population, over the axes."""
    axes = [axes] if isinstance(axes, int) else list(axes)
    axes = [one_axis(a, x.ndim, "moments") for a in axes]
    return _ops["mean"](x, axes, keepdims), _ops["var"](x, axes, False, keepdims)


def _along(values, x, axis, what):
    """One number for each channel of x, so that it broadcasts along axis."""
    if values.ndim == x.ndim:
        return values
    if list(values.shape) != [x.shape[axis]]:
        raise ValueError(
            f"{what}: found {list(values.shape)} for axis {axis} of {list(x.shape)}. "
            "Give one value for each of its elements."
        )
    return values.reshape(-1, *[1] * (x.ndim - 1 - axis))


@op
def batch_normalization(x, mean, variance, offset=None, scale=None, variance_epsilon=1e-5, axis=1):
    """(x - mean) / sqrt(variance + variance_epsilon), times scale plus offset, each given for the elements of axis."""
    axis = one_axis(axis, x.ndim, "batch_normalization")
    mean, variance = (_along(v, x, axis, "batch_normalization") for v in (mean, variance))
    y = (x - mean) * _ops["rsqrt"](variance + variance_epsilon)
    if scale is not None:
        y = y * _along(scale, x, axis, "batch_normalization")
    return y if offset is None else y + _along(offset, x, axis, "batch_normalization")


@op
def layer_norm(inputs, gamma=None, beta=None, begin_norm_axis=1, begin_params_axis=-1, epsilon=1e-5):
    """inputs to mean 0 and variance 1 over the axes from begin_norm_axis on; times gamma plus beta, of the shape from
    begin_params_axis on."""
    norm = one_axis(begin_norm_axis, inputs.ndim, "layer_norm")
    params = one_axis(begin_params_axis, inputs.ndim, "layer_norm")
    shape = list(inputs.shape)
    for what, t in (("gamma", gamma), ("beta", beta)):
        if t is not None and list(t.shape) != shape[params:]:
            raise ValueError(
                f"layer_norm: {what} is {list(t.shape)}; it must be {shape[params:]}, "
                f"what inputs {shape} are from axis {params} on."
            )
    if norm == params:
        return _ops["layer_norm"](inputs, shape[norm:], gamma, beta, epsilon)
    y = _ops["layer_norm"](inputs, shape[norm:], None, None, epsilon)
    y = y if gamma is None else y * gamma
    return y if beta is None else y + beta


# Dropout


def _checked_rate(rate, what):
    assert not isinstance(rate, bool) and isinstance(rate, (int, float)) and 0 <= rate < 1, (
        f"{what}: rate is {rate!r}; it must be a number of at least 0 and less than 1."
    )
    return rate


def dropout(x, rate, noise_shape=None, seed=None, name=None):
    """In a train job zero with the probability rate, else x / (1 - rate), drawn again in each call;
    in a predict job x itself.

    noise_shape: what is drawn, with size 1 along axes that are dropped as a whole. A seed needs a name; the draws
    follow holon.manual_seed, in every run the same numbers.
    """
    _checked_rate(rate, "dropout")
    assert seed is None or name is not None, "dropout: a seed needs a name. Give name=, or leave out the seed."
    return x if rate == 0 else _dropout(x, rate, noise_shape, name=name)


def _dropped(x, rate, noise_shape=None, training=True):
    if not training or rate == 0:
        return x
    if noise_shape is None:
        return _F.dropout(x, rate)
    return x * _mask(noise_shape, rate, x, "dropout").to(x.dtype) / (1 - rate)


def _mask(shape, rate, like, what):
    shape = list(shape)
    if len(shape) != like.ndim or any(s not in (1, n) for s, n in zip(shape, like.shape)):
        raise ValueError(f"{what}: noise_shape {shape} must have for each axis of {list(like.shape)} its size or 1.")
    return _ops["rand"](shape, **where_is(like)) >= rate


_dropped.__name__ = "dropout"
_dropout = op(_dropped, training=True)
computes(_dropped)(dropout)


@op
def random_mask_like(like, rate, seed=None, noise_shape=None):
    """1 with the probability 1 - rate, else 0, as int8, in the shape of like, drawn again in each call."""
    _checked_rate(rate, "random_mask_like")
    return _mask(noise_shape or like.shape, rate, like, "random_mask_like").to(_C.int8).expand(list(like.shape))


# Images


@op
def upsample(x, size=(2, 2), data_format="NCHW", interpolation="nearest"):
    """An image size times as high and as wide, by its nearest elements or bilinear."""
    if interpolation not in ("nearest", "bilinear"):
        raise ValueError(f"upsample_2d: interpolation is {interpolation!r}; it must be 'nearest' or 'bilinear'.")
    image, last = windows.channels_first(x, data_format, "upsample_2d", 2)
    times = windows.pair(size, 2, "upsample_2d: size")
    if min(times) < 1:
        raise ValueError(f"upsample_2d: size is {size}; it must be 1 or more.")
    y = _ops["interpolate"](
        image,
        [n * t for n, t in zip(image.shape[2:], times)],
        None,
        interpolation,
        None if interpolation == "nearest" else False,
    )
    return windows.channels_last(y) if last else y


@op
def pixel_shuffle(input, upscale_factor):
    """[n, c r r, h, w] to [n, c, h r, w r]."""
    return _ops["pixel_shuffle"](input, upscale_factor)


PixelShuffle = pixel_shuffle

__all__ = sorted(name for name, value in globals().items() if hasattr(value, "fn") and name[0] != "_") + [
    "avg_pool1d",
    "max_pool1d",
]
