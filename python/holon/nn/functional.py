"""Functions behind the layers, with PyTorch's names and orders of arguments. Whatever is an op of the same form, such as
`silu` or `log_softmax`, is that op."""

from .. import _C

_ops = _C.ops


def __getattr__(name):
    try:
        return _ops[name]
    except KeyError:
        raise AttributeError(f"nn.functional has no '{name}'; holon.ops() lists the ops that there are.") from None


def __dir__():
    return sorted({*globals(), *_ops})


def _with_inplace(name, numbers):
    """The op `name`, which takes so many numbers beside the tensor, with PyTorch's argument inplace."""
    op = _ops[name]

    def function(input, *args, inplace=False, **kwargs):
        if len(args) > numbers:
            *args, inplace = args
        return getattr(input, name + "_")(*args, **kwargs) if inplace else op(input, *args, **kwargs)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{op.__doc__}\nWith inplace, input takes the result's values."
    return function


for _name, _numbers in {"relu": 0, "relu6": 0, "leaky_relu": 1, "elu": 1, "celu": 1, "selu": 0, "silu": 0, "mish": 0,
                        "hardtanh": 2, "hardswish": 0, "hardsigmoid": 0, "threshold": 2}.items():
    globals()[_name] = _with_inplace(_name, _numbers)


def softmax(input, dim=-1, dtype=None):
    """exp(x) over its sum along dim. dtype: computed in it."""
    return _ops["softmax"](input if dtype is None else input.to(dtype), dim)


def dropout(input, p=0.5, training=True, inplace=False):
    """Sets elements to zero with probability p and scales the others by 1 / (1 - p); does nothing unless training."""
    if not training or p == 0:
        return input
    result = _ops["dropout"](input, p, True)
    return input.copy_(result) if inplace else result


def linear(input, weight, bias=None):
    """input @ weight.T + bias; weight is [out, in]."""
    return _ops["linear"](input, weight, bias)


def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    """Mean 0 and variance 1 over the last axes, which are of size normalized_shape; then * weight + bias."""
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    return _ops["layer_norm"](input, shape, weight, bias, eps)


def embedding(input, weight):
    """The rows of weight that the integers of input name."""
    return _ops["embedding"](weight, input)


def sparse_softmax_cross_entropy(labels, logits):
    """Minus the log probability that softmax(logits), over the last axis, gives to each of the labels."""
    return _ops["sparse_softmax_cross_entropy"](logits, labels)


def same_padding(kernel_size, dilation):
    """((before, after), ...) per axis of a window, for an output as large as the input at stride 1."""
    return tuple(((d * (k - 1)) // 2, d * (k - 1) - (d * (k - 1)) // 2) for k, d in zip(kernel_size, dilation))


def _pair(value):
    return (value, value) if isinstance(value, int) else tuple(value)


def conv2d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """Convolution of [n, c, h, w] with weight [out, c / groups, kh, kw]. padding: numbers, "valid" or "same"."""
    stride, dilation = _pair(stride), _pair(dilation)
    if isinstance(padding, str):
        if padding not in ("same", "valid"):
            raise ValueError(f"conv2d: padding is {padding!r}; it must be 'same', 'valid' or numbers.")
        if padding == "same" and stride != (1, 1):
            raise ValueError(f"conv2d: padding 'same' is for stride 1, not {stride}. Give the padding in numbers.")
        sides = same_padding(tuple(weight.shape)[2:], dilation) if padding == "same" else ((0, 0), (0, 0))
        padding = tuple(before for before, _ in sides) + tuple(after for _, after in sides)
    return _ops["conv2d"](input, weight, bias, stride=stride, padding=_pair(padding), dilation=dilation, groups=groups)
