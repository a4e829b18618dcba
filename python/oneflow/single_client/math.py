"""flow.math of the older API: elementwise functions, comparisons (int8) and reductions (never fewer than one axis)."""

from holon import _C

from .axes import as_bool, as_flags, one_axis, some_axes, where_is
from .record import computes, op

_ops = _C.ops


# Elementwise functions of one blob


def _unary(name, of=None):
    holon_op = _ops[of or name]

    def function(x):
        return holon_op(x)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = holon_op.__doc__
    return op(function)


square, sqrt, rsqrt, exp, expm1, log, log1p = map(_unary, ("square", "sqrt", "rsqrt", "exp", "expm1", "log", "log1p"))
abs, sign, negative, floor, ceil, round, reciprocal = map(
    _unary, ("abs", "sign", "negative", "floor", "ceil", "round", "reciprocal")
)
sin, cos, tan, asin, acos, atan = map(_unary, ("sin", "cos", "tan", "asin", "acos", "atan"))
sinh, cosh, tanh, asinh, acosh, atanh = map(_unary, ("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"))
sigmoid, softplus, softsign, gelu, relu, mish, erf, erfc = map(
    _unary, ("sigmoid", "softplus", "softsign", "gelu", "relu", "mish", "erf", "erfc")
)
log_sigmoid, rint = _unary("log_sigmoid", "logsigmoid"), _unary("rint", "round")
tanh_v2, sigmoid_v2 = _unary("tanh_v2", "tanh"), _unary("sigmoid_v2", "sigmoid")


@op
def logical_not(x):
    """1 where x is 0, else 0."""
    return as_flags(_ops["logical_not"](x))


@op
def reciprocal_no_nan(x):
    """1 / x, and 0 where x is 0."""
    zero = x == 0
    return _ops["where"](zero, _ops["zeros_like"](x), 1 / _ops["where"](zero, _ops["ones_like"](x), x))


# Of two, with broadcasting; each may be a number


def _binary(name, of=None, flags=False, overrides=None):
    holon_op = _ops[of or name]

    def function(x, y):
        return as_flags(holon_op(x, y)) if flags else holon_op(x, y)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{holon_op.__doc__} As int8." if flags else holon_op.__doc__
    return op(function, overrides=overrides)


def _comparison(name, of=None):
    return _binary(name, of, True, {name, of or name} & set(_ops))


subtract, multiply, divide = map(_binary, ("subtract", "multiply", "divide"))
minimum, maximum, pow, atan2, xlogy = map(_binary, ("minimum", "maximum", "pow", "atan2", "xlogy"))
mod, floordiv, floor_mod = (
    _binary("mod", "remainder"),
    _binary("floordiv", "floor_divide"),
    _binary("floor_mod", "remainder"),
)
broadcast_max, broadcast_min, broadcast_pow = (
    _binary(name, of)
    for name, of in (("broadcast_max", "maximum"), ("broadcast_min", "minimum"), ("broadcast_pow", "pow"))
)
equal, not_equal, less, less_equal, greater, greater_equal = (
    _comparison(name, of)
    for name, of in (
        ("equal", "eq"),
        ("not_equal", "ne"),
        ("less", "lt"),
        ("less_equal", "le"),
        ("greater", "gt"),
        ("greater_equal", "ge"),
    )
)
logical_and, logical_or, logical_xor = map(_comparison, ("logical_and", "logical_or", "logical_xor"))


@op
def squared_difference(x, y):
    """(x - y) squared."""
    return _ops["square"](_ops["sub"](x, y))


@op
def xdivy(x, y):
    """x / y, and 0 where x is 0."""
    zero = x == 0
    return _ops["where"](zero, _ops["zeros_like"](x / y), x / _ops["where"](zero, _ops["ones_like"](y), y))


@op
def add(x, y=None):
    """x + y with broadcasting; or the sum of a list of blobs."""
    return add_n.fn(x) if y is None else _ops["add"](x, y)


@op
def add_n(inputs):
    """The sum of blobs of one shape and dtype."""
    inputs = list(inputs)
    if not inputs:
        raise ValueError("add_n: there is no blob to add. Give one or more.")
    for x in inputs[1:]:
        if x.shape != inputs[0].shape or x.dtype != inputs[0].dtype:
            raise ValueError(
                f"add_n: shapes and dtypes must be equal; found {inputs[0].dtype} {list(inputs[0].shape)} and "
                f"{x.dtype} {list(x.shape)}."
            )
    total = inputs[0]
    for x in inputs[1:]:
        total = total + x
    return total


@op
def clip_by_value(values, min_value=None, max_value=None):
    """values within [min_value, max_value]; a bound of None is none."""
    if min_value is None and max_value is None:
        raise ValueError("clip_by_value: min_value and max_value are None. Give one of them, or both.")
    if min_value is not None and max_value is not None and min_value > max_value:
        raise ValueError(f"clip_by_value: min_value {min_value} is more than max_value {max_value}.")
    return _ops["clamp"](values, min_value, max_value)


def clip_by_scalar(x, min_value=None, max_value=None, name=None):
    """clip_by_value by its older name."""
    return clip_by_value(x, min_value, max_value, name=name)


computes(clip_by_value.fn)(clip_by_scalar)


@op
def polyval(coeffs, x):
    """coeffs[0] x^(n-1) + ... + coeffs[n-1], by Horner's rule."""
    if not isinstance(coeffs, (list, tuple)):
        raise ValueError(f"polyval: coeffs must be a list or a tuple, not {type(coeffs).__name__}.")
    result = _ops["zeros_like"](x)
    for c in coeffs:
        result = result * x + c
    return result


# Reductions


def _reduced(x, axis, keepdims, what, function):
    axes = some_axes(axis, x.ndim, what)
    return function(x, axes, keepdims) if axes else x


def _reduction(name, function, says):
    def reduce(x, axis=None, keepdims=False):
        return _reduced(x, axis, keepdims, name, function)

    reduce.__name__ = reduce.__qualname__ = name
    reduce.__doc__ = f"{says} over the axes given, or all: then of shape [1] unless keepdims."
    return op(reduce)


reduce_sum = _reduction("reduce_sum", lambda x, a, k: _ops["sum"](x, a, k, dtype=x.dtype), "The sum")
reduce_prod = _reduction("reduce_prod", lambda x, a, k: _ops["prod"](x, a, k, dtype=x.dtype), "The product")
reduce_mean = _reduction("reduce_mean", lambda x, a, k: _ops["mean"](x, a, k), "The mean")
reduce_max = _reduction("reduce_max", lambda x, a, k: _ops["amax"](x, a, k), "The largest element")
reduce_min = _reduction("reduce_min", lambda x, a, k: _ops["amin"](x, a, k), "The smallest element")
reduce_any = _reduction(
    "reduce_any", lambda x, a, k: as_flags(_ops["any"](as_bool(x), a, k)), "Whether any element is not 0, as int8,"
)
reduce_all = _reduction(
    "reduce_all", lambda x, a, k: as_flags(_ops["all"](as_bool(x), a, k)), "Whether no element is 0, as int8,"
)
reduce_variance = _reduction(
    "reduce_variance", lambda x, a, k: _ops["var"](x, a, False, k), "The variance of the population"
)
reduce_std = _reduction(
    "reduce_std", lambda x, a, k: _ops["std"](x, a, False, k), "The standard deviation of the population"
)
reduce_euclidean_norm = _reduction(
    "reduce_euclidean_norm", lambda x, a, k: _ops["linalg_vector_norm"](x, 2, a, k), "The Euclidean norm"
)
reduce_logsumexp = _reduction(
    "reduce_logsumexp", lambda x, a, k: _ops["logsumexp"](x, a, k), "The logarithm of the sum of exp(x)"
)


def two_stage_reduce_max(x, axis=None, keepdims=False, name=None):
    """reduce_max; how many devices take part changes nothing."""
    return reduce_max(x, axis, keepdims, name=name)


def two_stage_reduce_min(x, axis=None, keepdims=False, name=None):
    """reduce_min; how many devices take part changes nothing."""
    return reduce_min(x, axis, keepdims, name=name)


computes(reduce_max.fn)(two_stage_reduce_max)
computes(reduce_min.fn)(two_stage_reduce_min)


# Positions and orders


@op
def argmax(input, axis=-1):
    """Where the largest element along axis is, as int32."""
    return _ops["argmax"](input, one_axis(axis, input.ndim, "argmax")).to(_C.int32)


@op
def top_k(input, axis=-1, k=1, sorted=True):
    """Where the k largest elements along axis are, as int32, the largest first."""
    axis = one_axis(axis, input.ndim, "top_k")
    if not 1 <= k <= input.shape[axis]:
        raise ValueError(f"top_k: k is {k}; the axis has {input.shape[axis]} elements. Give a k of 1 to that.")
    return _ops["topk"](input, k, axis, True, sorted)[1].to(_C.int32)


@op
def in_top_k(targets, predictions, k):
    """For each row of predictions whether the class that targets names is among the k largest, as int8."""
    own = _ops["gather"](predictions, 1, targets.to(_C.int64).unsqueeze(1))
    larger = (predictions > own).to(_C.int32).sum(1)
    return as_flags(larger < k)


@op
def tril(x, diagonal=0, fill_value=0):
    """The lower triangles of the matrices of the last two axes; fill_value elsewhere."""
    if x.ndim < 2:
        raise ValueError(f"tril: x is {list(x.shape)}; it must have two axes or more.")
    kept = _ops["tril"](x, diagonal)
    if fill_value == 0:
        return kept
    return _ops["where"](_ops["tril"](_ops["ones_like"](x), diagonal) != 0, kept, _ops["full_like"](x, fill_value))


@op
def fused_scale_tril(x, diagonal=0, fill_value=0, scale=1):
    """tril of scale * x."""
    return tril.fn(x * scale, diagonal, fill_value)


@op
def l2_normalize(input, axis=None, epsilon=1e-12):
    """input / sqrt(max(the sum of its squares along axis, epsilon)); axis None is the last."""
    axis = one_axis(
        -1 if axis is None else axis[0] if isinstance(axis, (list, tuple)) else axis, input.ndim, "l2_normalize"
    )
    squares = _ops["sum"](_ops["square"](input), [axis], True)
    return input * _ops["rsqrt"](_ops["clamp"](squares, epsilon, None))


@op
def unsorted_segment_sum(data, segment_ids, num_segments, axis=0):
    """Sums the slices of data along axis by the segment that segment_ids gives each: num_segments of them."""
    axis = one_axis(axis, data.ndim, "unsorted_segment_sum")
    ids = segment_ids.ndim
    if list(data.shape[axis : axis + ids]) != list(segment_ids.shape):
        raise ValueError(
            f"unsorted_segment_sum: segment_ids is {list(segment_ids.shape)}; "
            f"data {list(data.shape)} must have that shape from axis {axis} on."
        )
    before, after = list(data.shape[:axis]), list(data.shape[axis + ids :])
    rows = data.reshape(*before, -1, *after)
    zeros = _ops["zeros"]([*before, int(num_segments), *after], dtype=data.dtype, **where_is(data))
    return _ops["index_add"](zeros, axis, segment_ids.reshape(-1).to(_C.int64), rows)


def unsorted_segment_sum_like(data, segment_ids, like, axis=0, name=None):
    """unsorted_segment_sum with as many segments as like has along axis."""
    return unsorted_segment_sum(data, segment_ids, like.shape[axis], axis, name=name)


computes(lambda data, segment_ids, like, axis=0: unsorted_segment_sum.fn(data, segment_ids, like.shape[axis], axis))(
    unsorted_segment_sum_like
)


__all__ = sorted(name for name, value in globals().items() if hasattr(value, "fn") and name[0] != "_")
