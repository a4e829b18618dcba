"""Normalisation: of rows, of channels, of vectors."""

import numpy as np
from op_table import ALL_FLOATS, FLOATS, a, i, row, wrong


def shaped(v, x):
    return v.reshape((-1,) + (1,) * (x.ndim - 2))


def batch_norm(x, mean, var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    if training or mean is None:
        axes = tuple(d for d in range(x.ndim) if d != 1)
        mean, var = x.mean(axes), x.var(axes)
    w = np.ones(x.shape[1]) if weight is None else weight
    b = np.zeros(x.shape[1]) if bias is None else bias
    return (x - shaped(mean, x)) / np.sqrt(shaped(var, x) + eps) * shaped(w, x) + shaped(b, x)


def group_norm(x, groups, weight=None, bias=None, eps=1e-5):
    g = x.reshape(x.shape[0], groups, -1)
    y = ((g - g.mean(2, keepdims=True)) / np.sqrt(g.var(2, keepdims=True) + eps)).reshape(x.shape)
    if weight is not None:
        y = y * shaped(weight, x)
    return y if bias is None else y + shaped(bias, x)


def instance_norm(x, mean=None, var=None, weight=None, bias=None, use_input_stats=True, momentum=0.1, eps=1e-5):
    return (
        group_norm(x, x.shape[1], weight, bias, eps)
        if use_input_stats
        else batch_norm(x, mean, var, weight, bias, eps=eps)
    )


def rms_norm(x, shape, weight=None, eps=None):
    axes = tuple(range(-len(shape), 0))
    y = x / np.sqrt(np.square(x).mean(axes, keepdims=True) + (1e-7 if eps is None else eps))
    return y if weight is None else y * weight


def normalize(x, p=2.0, dim=1, eps=1e-12):
    return x / np.maximum(np.linalg.norm(x, p, dim, keepdims=True), eps)


for shape in ((4, 3), (5, 3, 7), (2, 3, 4, 5), (2, 3, 2, 3, 4)):
    row("batch_norm", batch_norm, a(*shape), None, None, dtypes=ALL_FLOATS, training=True)
    row("batch_norm", batch_norm, a(*shape), a(3), a(3, low=0.5), a(3), a(3), training=True, eps=1e-3, dtypes=FLOATS)
    row("batch_norm", batch_norm, a(*shape), a(3), a(3, low=0.5), a(3), a(3), dtypes=ALL_FLOATS)
    row(
        "instance_norm" if len(shape) > 2 else "normalize",
        instance_norm if len(shape) > 2 else normalize,
        a(*shape),
        dtypes=ALL_FLOATS,
    )
# A mean far from 0.
row("batch_norm", batch_norm, a(64, 5, 3, low=998, high=1002), None, None, training=True, rtol=1e-4)
row("batch_norm", lambda x, m, v, training: x, a(0, 3), a(3), a(3, low=0.5), training=True)
row("batch_norm", batch_norm, a(40, 2, 33, 9), None, None, a(2), a(2), training=True)
for shape, groups in (((4, 6), 3), ((2, 6, 5), 2), ((2, 4, 3, 3), 4), ((3, 4, 2), 1)):
    row("group_norm", group_norm, a(*shape), groups, dtypes=ALL_FLOATS)
    row("group_norm", group_norm, a(*shape), groups, a(shape[1]), a(shape[1]), 1e-2)
row("instance_norm", instance_norm, a(2, 3, 5), a(3), a(3, low=0.5), a(3), a(3))
row("instance_norm", instance_norm, a(2, 3, 5), a(3), a(3, low=0.5), a(3), a(3), False)
row("rms_norm", rms_norm, a(4, 5), [5], dtypes=("float32",), rtol=1e-5)
row("rms_norm", rms_norm, a(4, 5), [5], a(5), 1e-3, dtypes=ALL_FLOATS)
row("rms_norm", rms_norm, a(3, 4, 5), [4, 5], a(4, 5), 1e-3)
for p in (1.0, 2.0, 3.0, np.inf):
    row("normalize", normalize, a(4, 5), p)
    row("normalize", normalize, a(2, 3, 4), p, -1)
row("normalize", normalize, np.zeros((2, 3)))

wrong("batch_norm", a(3), None, None, training=True, error=ValueError, says="axes")
wrong("batch_norm", a(1, 3), None, None, training=True, error=ValueError, says="more than 1 value")
wrong("batch_norm", a(2, 3), a(2), a(2), error=ValueError, says="running_mean has shape")
wrong("batch_norm", a(2, 3), a(3), None, error=ValueError, says="or neither")
wrong("batch_norm", a(2, 3), a(3), a(3), a(4), error=ValueError, says="weight has shape")
wrong("batch_norm", i(2, 3), a(3), a(3), error=TypeError, says="floating")
wrong("group_norm", a(2, 4), 3, error=ValueError, says="not divisible")
wrong("group_norm", a(2, 4), 0, error=ValueError, says="not divisible")
wrong("group_norm", a(2, 4), 2, a(2), error=ValueError, says="weight has shape")
wrong("instance_norm", a(2, 4, 1), error=ValueError, says="more than 1 value")
wrong("instance_norm", a(2, 4, 3), use_input_stats=False, error=ValueError, says="no running statistics")
wrong("rms_norm", a(2, 4), [3], error=ValueError, says="does not match the end")
wrong("rms_norm", a(2, 4), [4], a(3), error=ValueError, says="weight has shape")
wrong("rms_norm", i(2, 4), [4], error=TypeError, says="floating")
wrong("normalize", a(2, 4), 2.0, 2, error=IndexError, says="out of range")
wrong("normalize", a(2, 4), -1.0, error=ValueError, says="positive")
wrong("normalize", i(2, 4), error=TypeError, says="floating")


def softmax(x, dim=-1):
    e = np.exp(x - x.max(dim, keepdims=True)) if x.size else x
    return e / e.sum(dim, keepdims=True)


def layer_norm(x, shape, weight=None, bias=None, eps=1e-5):
    axes = tuple(range(-len(shape), 0))
    y = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


for shape, dim in (((5,), 0), ((3, 4), -1), ((3, 4), 0), ((2, 3, 4), 1), ((0, 3), 1)):
    row("softmax", softmax, a(*shape), dim, dtypes=ALL_FLOATS)
    row("log_softmax", lambda x, d: np.log(softmax(x, d)), a(*shape), dim, dtypes=ALL_FLOATS)
row("layer_norm", layer_norm, a(4, 5), [5], dtypes=ALL_FLOATS)
row("layer_norm", layer_norm, a(3, 4, 5), [4, 5], a(4, 5), a(4, 5), 1e-3, dtypes=ALL_FLOATS)
row("layer_norm", layer_norm, a(0, 5), [5], a(5))
wrong("softmax", a(2, 3), 2, error=IndexError, says="out of range")
wrong("softmax", i(2, 3), 1, error=TypeError, says="floating")
wrong("log_softmax", a(2, 3), -3, error=IndexError, says="out of range")
wrong("layer_norm", a(2, 3), [4], error=ValueError, says="does not match the end")
wrong("layer_norm", a(2, 3), [3], a(2), error=ValueError, says="weight has shape")
