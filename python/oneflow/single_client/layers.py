"""flow.layers of the older API: ops with their own variables, named after the layer."""

from holon import _C

from . import nn, windows
from .axes import one_axis, pair
from .distribute import auto, broadcast, split
from .initializers import constant_initializer, xavier_uniform_initializer
from .record import op
from .variable import get_variable

_ops = _C.ops

__all__ = [
    "batch_normalization",
    "batch_normalization_add_relu",
    "batch_normalization_relu",
    "conv1d",
    "conv2d",
    "conv3d",
    "dense",
    "layer_norm",
    "prelu",
    "upsample_2d",
]


def _variable(name, shape, like, initializer, regularizer=None, trainable=True, distribute=None):
    return get_variable(
        name,
        list(shape),
        like.dtype,
        initializer,
        regularizer,
        trainable,
        distribute=distribute if distribute is not None else broadcast(),
        reuse=False,
    )


# Dense


@op
def _dense(x, weight, bias=None):
    if weight.is_global and any(s.is_split for s in weight.sbp):
        # Each rank has all rows of x and gives some columns of the result;
        # otherwise the weight might be gathered instead.
        x = x.to_global(x.placement, [_C.sbp.broadcast if w.is_split else s for s, w in zip(x.sbp, weight.sbp)])
    y = _ops["linear"](x.reshape(-1, x.shape[-1]), weight, bias)
    return y.reshape(*x.shape[:-1], weight.shape[0])


def dense(
    inputs,
    units,
    activation=None,
    use_bias=True,
    kernel_initializer=None,
    bias_initializer=None,
    kernel_regularizer=None,
    bias_regularizer=None,
    trainable=True,
    name="Dense",
    model_distribute=None,
):
    """Returns inputs x the transposed weight [units, size of inputs' last axis] + bias, through activation.

    Variables "<name>-weight" and "<name>-bias", zeros unless initializers are given. model_distribute: split(0) keeps
    some of the units on each device, for inputs of two axes.
    """
    model_distribute = broadcast() if model_distribute is None else model_distribute
    assert len(inputs.shape) >= 2, f"layers.dense: inputs are {list(inputs.shape)}; they must have two axes or more."
    assert model_distribute in (auto(), broadcast(), split(0)), (
        f"layers.dense: model_distribute is {model_distribute!r}; "
        "it must be distribute.split(0), broadcast() or auto()."
    )
    assert model_distribute is not split(0) or len(inputs.shape) == 2, (
        f"layers.dense: with model_distribute=split(0) inputs must have two axes; found {list(inputs.shape)}."
    )
    assert isinstance(units, int) and units > 0, f"layers.dense: units is {units!r}; it must be an int of 1 or more."
    zeros = constant_initializer(0)
    weight = _variable(
        f"{name}-weight",
        (units, inputs.shape[-1]),
        inputs,
        kernel_initializer or zeros,
        kernel_regularizer,
        trainable,
        model_distribute,
    )
    bias = None
    if use_bias:
        bias = _variable(
            f"{name}-bias", (units,), inputs, bias_initializer or zeros, bias_regularizer, trainable, model_distribute
        )
    return _activated(_dense(inputs, weight, bias, name=name), activation)


def _activated(blob, activation):
    return blob if activation is None else activation(blob, name="activation")


# Convolutions


@op
def _conv(x, weight, bias, n, strides, padding, data_format, dilations, groups):
    return windows._convolve(n, f"layers.conv{n}d", x, weight, strides, padding, data_format, dilations, groups, bias)


def _conv_layer(n, default_format):
    what = f"layers.conv{n}d"

    def conv(
        inputs,
        filters,
        kernel_size=1,
        strides=1,
        padding="VALID",
        data_format=default_format,
        dilation_rate=None,
        groups=1,
        activation=None,
        use_bias=True,
        kernel_initializer=None,
        bias_initializer=None,
        kernel_regularizer=None,
        bias_regularizer=None,
        trainable=True,
        name=f"Conv{n}d",
        weight_name=None,
        bias_name=None,
    ):
        assert len(inputs.shape) == n + 2, f"{what}: inputs are {list(inputs.shape)}; they must have {n + 2} axes."
        last = windows.channels_are_last(data_format, n, what)
        window = pair(kernel_size, n, f"{what}: kernel_size")
        channels = inputs.shape[-1] if last else inputs.shape[1]
        assert isinstance(groups, int) and groups > 0 and not (last and groups > 1), (
            f"{what}: {groups!r} groups with data_format {data_format!r}."
        )
        assert filters % groups == 0 and channels % groups == 0, (
            f"{what}: {groups} groups do not divide {channels} channels and {filters} filters."
        )
        shape = (filters, *window, channels) if last else (filters, channels // groups, *window)
        weight = _variable(
            weight_name or f"{name}-weight",
            shape,
            inputs,
            kernel_initializer or xavier_uniform_initializer(data_format),
            kernel_regularizer,
            trainable,
        )
        bias = None
        if use_bias:
            bias = _variable(
                bias_name or f"{name}-bias",
                (filters,),
                inputs,
                bias_initializer or constant_initializer(0),
                bias_regularizer,
                trainable,
            )
        return _activated(
            _conv(inputs, weight, bias, n, strides, padding, data_format, dilation_rate, groups, name=name), activation
        )

    conv.__name__ = conv.__qualname__ = f"conv{n}d"
    conv.__doc__ = f"""Returns the convolution of inputs, {default_format} unless data_format has the channels last,
    plus bias, through activation.

    Variables "<name>-weight" [filters, channels / groups, window...] (channels last: [filters, window..., channels]),
    by xavier_uniform_initializer, and "<name>-bias", zeros; or weight_name and bias_name in full.
    """
    return conv


conv1d, conv2d, conv3d = _conv_layer(1, "NCW"), _conv_layer(2, "NCHW"), _conv_layer(3, "NCDHW")


# Normalisation


@op(training=True)
def _batch_norm(x, mean, variance, gamma, beta, axis, momentum, epsilon, by_batch, training):
    x = x if axis == 1 else _ops["movedim"](x, axis, 1)
    if training and by_batch:
        count = x.numel() // x.shape[1]
        before = variance.detach().clone()
        y = _ops["batch_norm"](x, mean, variance, gamma, beta, True, 1 - momentum, epsilon)
        # The op takes in the sample's variance; here it is the batch's own.
        kept = before * momentum
        variance.detach().copy_(kept + (variance.detach() - kept) * ((count - 1) / count))
    else:
        y = _ops["batch_norm"](x, mean, variance, gamma, beta, False, 0.0, epsilon)
    return y if axis == 1 else _ops["movedim"](y, 1, axis)


def batch_normalization(
    inputs,
    axis=-1,
    momentum=0.99,
    epsilon=0.001,
    center=True,
    scale=True,
    beta_initializer=None,
    gamma_initializer=None,
    beta_regularizer=None,
    gamma_regularizer=None,
    moving_mean_initializer=None,
    moving_variance_initializer=None,
    trainable=True,
    training=True,
    name="BatchNorm",
):
    """Returns inputs brought to mean 0 and variance 1 for each element of axis, times gamma plus beta.

    In a train job by mean and variance of the whole batch, which the moving ones take in with the share 1 - momentum;
    in a predict job, or unless trainable and training, by the moving ones. Variables "<name>-beta", "-gamma",
    "-moving_mean", "-moving_variance".
    """
    assert len(inputs.shape) >= 2, (
        f"layers.batch_normalization: inputs are {list(inputs.shape)}; they must have two axes or more."
    )
    axis = one_axis(axis, len(inputs.shape), "layers.batch_normalization")
    assert 0 <= momentum <= 1, f"layers.batch_normalization: momentum is {momentum}; it must be between 0 and 1."
    shape = (inputs.shape[axis],)
    zeros, ones = constant_initializer(0), constant_initializer(1)
    beta = gamma = None
    if center:
        beta = _variable(f"{name}-beta", shape, inputs, beta_initializer or zeros, beta_regularizer, trainable)
    if scale:
        gamma = _variable(f"{name}-gamma", shape, inputs, gamma_initializer or ones, gamma_regularizer, trainable)
    mean = _variable(f"{name}-moving_mean", shape, inputs, moving_mean_initializer or zeros, trainable=False)
    variance = _variable(f"{name}-moving_variance", shape, inputs, moving_variance_initializer or ones, trainable=False)
    return _batch_norm(
        inputs, mean, variance, gamma, beta, axis, momentum, epsilon, bool(trainable and training), name=name
    )


def batch_normalization_relu(
    inputs,
    axis=-1,
    momentum=0.99,
    epsilon=0.001,
    center=True,
    scale=True,
    beta_initializer=None,
    gamma_initializer=None,
    beta_regularizer=None,
    gamma_regularizer=None,
    moving_mean_initializer=None,
    moving_variance_initializer=None,
    trainable=True,
    training=True,
    name="BatchNorm",
):
    """Returns relu(batch_normalization(inputs))."""
    return batch_normalization_add_relu(
        inputs,
        None,
        axis,
        momentum,
        epsilon,
        center,
        scale,
        beta_initializer,
        gamma_initializer,
        beta_regularizer,
        gamma_regularizer,
        moving_mean_initializer,
        moving_variance_initializer,
        trainable,
        training,
        name,
    )


def batch_normalization_add_relu(
    inputs,
    addend=None,
    axis=-1,
    momentum=0.99,
    epsilon=0.001,
    center=True,
    scale=True,
    beta_initializer=None,
    gamma_initializer=None,
    beta_regularizer=None,
    gamma_regularizer=None,
    moving_mean_initializer=None,
    moving_variance_initializer=None,
    trainable=True,
    training=True,
    name="BatchNorm",
):
    """Returns relu(batch_normalization(inputs) + addend)."""
    assert addend is None or tuple(addend.shape) == tuple(inputs.shape), (
        f"layers.batch_normalization_add_relu: the addend is {list(addend.shape)}, inputs are {list(inputs.shape)}."
    )
    y = batch_normalization(
        inputs,
        axis,
        momentum,
        epsilon,
        center,
        scale,
        beta_initializer,
        gamma_initializer,
        beta_regularizer,
        gamma_regularizer,
        moving_mean_initializer,
        moving_variance_initializer,
        trainable,
        training,
        name,
    )
    return nn.relu(y if addend is None else y + addend)


def layer_norm(
    inputs,
    center=True,
    scale=True,
    trainable=True,
    begin_norm_axis=1,
    begin_params_axis=-1,
    epsilon=1e-5,
    name="LayerNorm",
):
    """Returns inputs brought to mean 0 and variance 1 over the axes from begin_norm_axis on, times gamma plus beta.

    Variables "<name>-beta" and "<name>-gamma", of the shape from begin_params_axis on.
    """
    first = one_axis(begin_params_axis, len(inputs.shape), "layers.layer_norm")
    one_axis(begin_norm_axis, len(inputs.shape), "layers.layer_norm")
    shape = inputs.shape[first:]
    beta = _variable(f"{name}-beta", shape, inputs, constant_initializer(0), trainable=trainable) if center else None
    gamma = _variable(f"{name}-gamma", shape, inputs, constant_initializer(1), trainable=trainable) if scale else None
    return nn.layer_norm(inputs, gamma, beta, begin_norm_axis, begin_params_axis, epsilon, name=name)


# Others


@op
def _prelu(x, alpha):
    return _ops["where"](x > 0, x, x * alpha)


def prelu(
    inputs,
    alpha_initializer=None,
    alpha_regularizer=None,
    shared_axes=None,
    trainable=True,
    name="PRelu",
    model_distribute=None,
):
    """Returns inputs where they are positive, else alpha * inputs;
    alpha, "<name>-alpha", has the shape of a sample, and size 1 along shared_axes."""
    shape = list(inputs.shape[1:])
    for axis in shared_axes or ():
        assert 1 <= axis < len(inputs.shape), (
            f"layers.prelu: shared_axes {list(shared_axes)} must be axes of {list(inputs.shape)} from 1 on."
        )
        shape[axis - 1] = 1
    alpha = _variable(
        f"{name}-alpha",
        shape,
        inputs,
        alpha_initializer or constant_initializer(0),
        alpha_regularizer,
        trainable,
        model_distribute,
    )
    return _prelu(inputs, alpha, name=name)


def upsample_2d(x, size=(2, 2), data_format="NCHW", interpolation="nearest", name="Upsample2D"):
    """Returns images size times as high and as wide, by their nearest elements or bilinear."""
    return nn.upsample(x, size, data_format, interpolation, name=name)
