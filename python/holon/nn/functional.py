"""Functions behind the layers, with PyTorch's names and orders of arguments. Whatever is an op of the same form, such
as `silu` or `log_softmax`, is that op; here are those that take more than theirs does, `inplace` above all."""

from .. import _C

_ops = _C.ops


def __getattr__(name):
    try:
        return _ops[name]
    except KeyError:
        from .._missing import error

        raise error("nn.functional", name, dir(), "holon.ops() lists the ops that there are.") from None


def __dir__():
    return sorted({*globals(), *_ops})


def _with_inplace(name, *options):
    """The op of a name, whose options may be followed by inplace: then input takes the result's values."""

    def function(input, *args, inplace=False, **kwargs):
        if len(args) > len(options):
            *args, inplace = args
        return getattr(input, name + "_")(*args, **kwargs) if inplace else _ops[name](input, *args, **kwargs)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"The op {name}; with inplace, input takes the result's values."
    return function


relu = _with_inplace("relu")
relu6 = _with_inplace("relu6")
leaky_relu = _with_inplace("leaky_relu", "negative_slope")
elu = _with_inplace("elu", "alpha")
celu = _with_inplace("celu", "alpha")
selu = _with_inplace("selu")
silu = _with_inplace("silu")
mish = _with_inplace("mish")
threshold = _with_inplace("threshold", "threshold", "value")
hardtanh = _with_inplace("hardtanh", "min_val", "max_val")
hardswish = _with_inplace("hardswish")
hardsigmoid = _with_inplace("hardsigmoid")


def _softmax_axis(input, dim):
    """dim, or PyTorch's choice where there is none: the classes of [c], [n, c], [c, h, w] and [n, c, h, w]."""
    return dim if dim is not None else 0 if input.ndim in (0, 1, 3) else 1


def softmax(input, dim=None, dtype=None):
    """exp(x) over its sum along dim; by default axis 0 of 0, 1 or 3 axes, else axis 1. dtype: computed in it."""
    return _ops["softmax"](input if dtype is None else input.to(dtype), _softmax_axis(input, dim))


def log_softmax(input, dim=None, dtype=None):
    """The logarithm of softmax, with the same default of dim. dtype: computed in it."""
    return _ops["log_softmax"](input if dtype is None else input.to(dtype), _softmax_axis(input, dim))


def softmin(input, dim=None, dtype=None):
    """softmax(-x), with the same default of dim. dtype: computed in it."""
    return softmax(-input, dim, dtype)


def _dropout(name, default=True):
    def function(input, p=0.5, training=default, inplace=False):
        if not training or p == 0:
            return input
        result = _ops[name](input, p, True)
        return input.copy_(result) if inplace else result

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"The op {name}, with input itself as the result unless training; "
        "with inplace, input takes the result's values."
    )
    return function


dropout = _dropout("dropout")
dropout1d = _dropout("dropout1d")
dropout2d = _dropout("dropout2d")
dropout3d = _dropout("dropout3d")
alpha_dropout = _dropout("alpha_dropout", False)
feature_alpha_dropout = _dropout("feature_alpha_dropout", False)


def linear(input, weight, bias=None):
    """input @ weight.T + bias; weight is [out, in]."""
    return _ops["linear"](input, weight, bias)


def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    """Mean 0 and variance 1 over the last axes, which are of size normalized_shape; then * weight + bias."""
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    return _ops["layer_norm"](input, shape, weight, bias, eps)


def embedding(input, weight, padding_idx=None):
    """The rows of weight that the integers of input name; the row padding_idx gets no gradient."""
    return _ops["embedding"](weight, input, padding_idx)


def sparse_softmax_cross_entropy(labels, logits):
    """Minus the log probability that softmax(logits), over the last axis, gives to each of the labels."""
    return _ops["sparse_softmax_cross_entropy"](logits, labels)


def repeated(value, n, name):
    """One number for each of n axes: the number given for all, or those given."""
    values = (value,) * n if isinstance(value, int) else tuple(value)
    if len(values) != n:
        raise ValueError(f"{name}: {value} is not one number, nor one for each of {n} axes.")
    return values


def same_padding(kernel_size, dilation):
    """((before, after), ...) per axis of a window, for an output as large as the input at stride 1."""
    return tuple(((d * (k - 1)) // 2, d * (k - 1) - (d * (k - 1)) // 2) for k, d in zip(kernel_size, dilation))


def _convolution(n):
    name = f"conv{n}d"

    def function(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise ValueError(f"{name}: padding is {padding!r}; it must be 'same', 'valid' or numbers.")
            if padding == "same" and any(s != 1 for s in repeated(stride, n, name)):
                raise ValueError(f"{name}: padding 'same' is for stride 1, not {stride}. Give the padding in numbers.")
            sides = (
                same_padding(tuple(weight.shape)[2:], repeated(dilation, n, name))
                if padding == "same"
                else ((0, 0),) * n
            )
            # An even window needs one row more behind than before: with sides that differ, those before come first.
            padding = tuple(before for before, _ in sides)
            if any(after > before for before, after in sides):
                padding += tuple(after for _, after in sides)
        return _ops[name](input, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f'The op {name}, whose padding may be "valid" or "same" too.'
    return function


conv1d, conv2d, conv3d = map(_convolution, (1, 2, 3))


def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, reduction="mean", zero_infinity=False):
    """The op ctc_loss, whose lengths may be numbers, too."""

    def as_tensor(lengths):
        if isinstance(lengths, _C.Tensor):
            return lengths
        where = {}
        if log_probs.is_global:
            where = {"placement": log_probs.placement, "sbp": [_C.sbp.broadcast] * len(log_probs.sbp)}
        return _C.tensor(lengths, dtype=_C.int64, **where)

    return _ops["ctc_loss"](
        log_probs, targets, as_tensor(input_lengths), as_tensor(target_lengths), blank, reduction, zero_infinity
    )


def _max_pool(name):
    def function(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
        op = _ops[name + "_with_indices" if return_indices else name]
        return op(input, kernel_size, stride, padding, dilation, ceil_mode)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"The op {name}; with return_indices also where the elements are in their plane."
    return function


max_pool1d, max_pool2d, max_pool3d = (_max_pool(f"max_pool{n}d") for n in (1, 2, 3))


def _adaptive_pool(name, n, with_indices):
    def pool(input, output_size):
        sizes = (output_size,) * n if output_size is None or isinstance(output_size, int) else tuple(output_size)
        return _ops[name](input, [input.shape[i - n] if size is None else size for i, size in enumerate(sizes)])

    def max_pool(input, output_size, return_indices=False):
        values, indices = pool(input, output_size)
        return (values, indices) if return_indices else values

    function = max_pool if with_indices else pool
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"The op {name}; a size of None is that of input."
    return function


adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = (
    _adaptive_pool(f"adaptive_avg_pool{n}d", n, False) for n in (1, 2, 3)
)
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = (
    _adaptive_pool(f"adaptive_max_pool{n}d", n, True) for n in (1, 2, 3)
)
