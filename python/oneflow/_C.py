"""flow._C: Holon's ops under the parameters that OneFlow's functions have. An op of the same parameters is itself."""

from functools import wraps as _wraps

import holon as _holon
from holon import _C as _core

_ops = _core.ops


def matmul(input, other, transpose_a=False, transpose_b=False, alpha=1.0):
    return _ops["matmul"](input, other, transpose_a=transpose_a, transpose_b=transpose_b, alpha=alpha)


batch_matmul = matmul


def gather(x, indices, axis):
    """The entries of x along an axis at the indices, of whatever shape: x[..., indices, ...]."""
    if axis % x.ndim == 0 and x.ndim == 2:
        return _ops["embedding"](x, indices)
    picked = _ops["index_select"](x, axis, indices.reshape(-1))
    axis %= x.ndim
    return picked.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


def dim_gather(input, dim, index, sparse_grad=False):
    return _ops["gather"](input, dim, index)


def transpose(input, *dims, perm=None, **named):
    """By all axes in their new order, or by two that change places."""
    if perm is None and len(dims) == 1:
        (perm,) = dims
    return _ops["transpose"](input, *dims, **named) if perm is None else _ops["permute"](input, perm)


def _like(name, make):
    """The op of a name; under a placement and sbp, or on a device, of your own: what make() makes of the shape."""

    def function(
        input, *values, dtype=None, device=None, placement=None, sbp=None, requires_grad=False, generator=None
    ):
        drawn = {} if generator is None else {"generator": generator}
        if device is None and placement is None and sbp is None:
            return _ops[name](input, *values, dtype=dtype, requires_grad=requires_grad, **drawn)
        return make(
            input.shape,
            *values,
            dtype=input.dtype if dtype is None else dtype,
            device=device,
            placement=placement,
            sbp=sbp,
            requires_grad=requires_grad,
            **drawn,
        )

    function.__name__ = function.__qualname__ = name
    return function


zeros_like, ones_like, empty_like = (_like(f"{name}_like", _ops[name]) for name in ("zeros", "ones", "empty"))
rand_like, randn_like = _like("rand_like", _ops["rand"]), _like("randn_like", _ops["randn"])
full_like = _like("full_like", _ops["full"])
randint_like = _like("randint_like", lambda shape, *bounds, **options: _ops["randint"](*bounds, shape, **options))


def unique(input, sorted=True, return_inverse=False, return_counts=False, dtype=None):
    """dtype: of the indices and counts."""
    found = _ops["unique"](input, sorted, return_inverse, return_counts)
    return (found[0], *(t.to(dtype) for t in found[1:])) if dtype is not None and isinstance(found, tuple) else found


def argwhere(input, dtype=None):
    found = _ops["argwhere"](input)
    return found if dtype is None else found.to(dtype)


def layer_norm(x, begin_norm_axis, begin_params_axis, epsilon=1e-5):
    return _ops["layer_norm"](x, tuple(x.shape[begin_norm_axis:]), None, None, epsilon)


def layer_norm_affine(x, gamma, beta, begin_norm_axis, begin_params_axis, epsilon=1e-5):
    return _ops["layer_norm"](x, tuple(x.shape[begin_norm_axis:]), gamma, beta, epsilon)


def rms_norm(x, weight=None, normalized_shape=None, epsilon=1e-6):
    return _ops["rms_norm"](x, tuple(weight.shape if normalized_shape is None else normalized_shape), weight, epsilon)


def softmax(x, dim=None):
    return _holon.nn.functional.softmax(x, dim)


def log_softmax(x, dim=None):
    return _holon.nn.functional.log_softmax(x, dim)


def sparse_softmax_cross_entropy(logits, label):
    return _ops["sparse_softmax_cross_entropy"](logits, label)


def cross_entropy(input, target, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0):
    return _ops["cross_entropy"](
        input, target, weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
    )


def global_arange(start, end=None, step=1, *, dtype=None, placement, sbp):
    return _ops["arange"](start, end, step, dtype=dtype, placement=placement, sbp=sbp)


def global_constant(shape, value, *, dtype, placement, sbp):
    return _ops["full"](shape, value, dtype=dtype, placement=placement, sbp=sbp)


def global_empty(shape, *, dtype, placement, sbp):
    return _ops["empty"](shape, dtype=dtype, placement=placement, sbp=sbp)


def dropout(input, p=0.5, training=True, inplace=False, generator=None, *, addend=None):
    dropped = _holon.nn.functional.dropout(input, p, training, inplace)
    return dropped if addend is None else dropped + addend


def fused_scale_mask_softmax(x, mask, *, fill_value=0.0, scale=1.0):
    return _ops["fused_scale_mask_softmax"](
        x, mask.to(_core.bool), fill_value=fill_value, scale=1.0 if scale is None else scale
    )


def fused_scale_mask_softmax_dropout(x, mask, *, fill_value=0.0, scale=1.0, p=0.5, training=True, generator=None):
    return _ops["fused_scale_mask_softmax_dropout"](
        x, mask.to(_core.bool), fill_value=fill_value, scale=1.0 if scale is None else scale, p=p, training=training
    )


def fused_bias_add_scale_mask_softmax_dropout(
    x, bias, mask, *, fill_value=0.0, scale=1.0, p=0.5, training=True, generator=None
):
    return _ops["fused_bias_add_scale_mask_softmax_dropout"](
        x,
        bias,
        mask.to(_core.bool),
        fill_value=fill_value,
        scale=1.0 if scale is None else scale,
        p=p,
        training=training,
    )


def fused_scale_tril_softmax_mask_scale(
    a, *, p=0.5, diagonal=0, tril_scale_value=1.0, tril_fill_value=0.0, generator=None
):
    return _ops["fused_scale_tril_softmax_mask_scale"](
        a, p, diagonal, 1.0 if tril_scale_value is None else tril_scale_value, tril_fill_value
    )


def fused_scale_tril(x, diagonal=0, fill_value=0, scale=1):
    return _ops["fused_scale_tril"](x, diagonal, fill_value, scale)


def fused_bias_add_dropout(a, b, *, p=0.5, axis, generator=None):
    return _ops["fused_bias_add_dropout"](a, b, p=p, axis=axis)


def fused_multi_head_attention_inference(
    query,
    key,
    value,
    num_heads,
    causal=False,
    query_hidden_slice_start=0,
    query_hidden_slice_end=-1,
    key_hidden_slice_start=0,
    key_hidden_slice_end=-1,
    value_hidden_slice_start=0,
    value_hidden_slice_end=-1,
):
    """Attention of [batch, length, heads x size] tensors, of each of which a stretch of the last axis may be taken."""

    def heads(x, begin, end):
        x = x[..., begin : x.shape[-1] if end == -1 else end]
        return x.reshape(x.shape[0], x.shape[1], num_heads, -1).transpose(1, 2)

    out = _ops["scaled_dot_product_attention"](
        heads(query, query_hidden_slice_start, query_hidden_slice_end),
        heads(key, key_hidden_slice_start, key_hidden_slice_end),
        heads(value, value_hidden_slice_start, value_hidden_slice_end),
        is_causal=causal,
    )
    return out.transpose(1, 2).flatten(2)


def reshape_like(input, like):
    return input.reshape(like.shape)


def slice(input, slice_tup_list):
    """input[...] by [start, stop, step] for each axis, None for what is not said."""
    return input[_slices(slice_tup_list)]


def slice_update(input, update, slice_tup_list):
    """Writes update to input[...] by [start, stop, step] for each axis, and returns input."""
    input[_slices(slice_tup_list)] = update
    return input


def _slices(triples):
    from builtins import slice as python_slice

    return tuple(python_slice(*t) for t in triples)


def to_global(x, placement, sbp, grad_sbp=(), check_meta=True, copy=False):
    return x.to_global(placement, sbp, grad_sbp=grad_sbp or None)


def relu(x, inplace=False):
    return _holon.nn.functional.relu(x, inplace)


def one_hot(input, num_classes=-1, on_value=1, off_value=0):
    hot = _ops["one_hot"](input, num_classes)
    return hot if (on_value, off_value) == (1, 0) else _ops["where"](hot != 0, on_value, off_value)


def _with_blobs(function):
    """Of the functions here that the older interface has with other parameters: those of blobs are its."""

    @_wraps(function)
    def call(*args, **kwargs):
        for value in (*args, *kwargs.values()):
            if hasattr(type(value), "__holon_function__"):
                return type(value).__holon_function__(function, args, kwargs)
        return function(*args, **kwargs)

    return call


slice, slice_update, zeros_like, ones_like, transpose = map(
    _with_blobs, (slice, slice_update, zeros_like, ones_like, transpose)
)


def __getattr__(name):
    if name in _ops:
        return _ops[name]
    from holon._missing import error

    raise error("_C", name, [*globals(), *_ops], "oneflow.ops() lists the ops that there are.")


def __dir__():
    return sorted({*_ops, *(n for n in globals() if n[0] != "_")})
