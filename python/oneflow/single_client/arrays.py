"""The older API's functions of shapes, positions and values (flow.reshape, flow.concat, ...), where their parameters
differ from those of holon's ops of the same names."""

import builtins

from holon import _C

from .axes import as_bool, one_axis, pair, some_axes, where_is
from .math import clip_by_scalar, clip_by_value  # noqa: F401
from .record import computes, creation, op

_ops = _C.ops


# Shapes


@op(overrides="reshape")
def reshape(x, shape):
    """x with another shape, of which one size may be -1."""
    shape = [int(s) for s in shape]
    if sum(s == -1 for s in shape) > 1 or any(s < -1 for s in shape):
        raise ValueError(f"reshape: the shape is {shape}; sizes must be at least 0, and one of them may be -1.")
    return _ops["reshape"](x, shape)


@op
def reshape_like(x, like):
    """x with the shape of another blob."""
    return _ops["reshape"](x, list(like.shape))


def dynamic_reshape(x, shape, name=None):
    """reshape; every blob's shape is known here."""
    return reshape(x, shape, name=name)


computes(reshape.fn)(dynamic_reshape)


@op(overrides="flatten")
def flatten(input, start_dim=0, end_dim=-1):
    """input with the axes start_dim to end_dim made one."""
    first, last = one_axis(start_dim, input.ndim, "flatten"), one_axis(end_dim, input.ndim, "flatten")
    if first > last:
        raise ValueError(f"flatten: start_dim {start_dim} is after end_dim {end_dim}.")
    return _ops["flatten"](input, first, last)


@op(overrides="transpose")
def transpose(a, perm=None, conjugate=False, batch_axis_non_change=False):
    """a with its axes in the order perm, or reversed."""
    if conjugate or batch_axis_non_change:
        raise NotImplementedError("transpose: conjugate and batch_axis_non_change are not supported. Leave them out.")
    order = [one_axis(p, a.ndim, "transpose") for p in (builtins.range(a.ndim - 1, -1, -1) if perm is None else perm)]
    if sorted(order) != list(builtins.range(a.ndim)):
        raise ValueError(
            f"transpose: perm is {list(perm)}; it must name each of the {a.ndim} axes of {list(a.shape)} once."
        )
    return _ops["permute"](a, order)


@op(overrides="squeeze")
def squeeze(input, axis=None):
    """input without the axes given, each of size 1, or without all that are."""
    axes = some_axes(axis, input.ndim, "squeeze")
    if axis is None:
        axes = [a for a in axes if input.shape[a] == 1]
    for a in axes:
        if input.shape[a] != 1:
            raise ValueError(
                f"squeeze: axis {a} of {list(input.shape)} has {input.shape[a]} elements; only axes of size 1 can go."
            )
    return _ops["squeeze"](input, axes) if axes else input


@op
def expand_dims(input, axis):
    """input with a new axis of size 1 at axis."""
    return _ops["unsqueeze"](input, one_axis(axis, input.ndim + 1, "expand_dims"))


@op(overrides="broadcast_like")
def broadcast_like(x, like, broadcast_axes=None):
    """x as large as like; broadcast_axes are those of like's that x lacks or has with size 1."""
    if not broadcast_axes:
        return _ops["expand"](x, list(like.shape))
    return _ops["broadcast_like"](x, like, [one_axis(a, like.ndim, "broadcast_like") for a in broadcast_axes])


@op(overrides="concat")
def concat(inputs=None, axis=0, max_dim_size=None, values=None):
    """Blobs one behind the other along axis."""
    blobs = list(inputs if inputs is not None else values or ())
    if not blobs:
        raise ValueError("concat: there is no blob to join. Give one or more.")
    return _ops["cat"](blobs, one_axis(axis, blobs[0].ndim, "concat")) if len(blobs) > 1 else blobs[0]


@op(overrides="stack")
def stack(inputs, axis=0):
    """Blobs of one shape side by side along a new axis."""
    blobs = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    if not blobs:
        raise ValueError("stack: there is no blob to join. Give one or more.")
    return _ops["stack"](blobs, one_axis(axis, blobs[0].ndim + 1, "stack"))


@op
def reverse(input, axis):
    """input with its elements along the axes in reverse order."""
    return _ops["flip"](input, some_axes(axis, input.ndim, "reverse"))


@op(overrides="pad")
def pad(x, paddings, constant_value=0):
    """x with paddings[i] = (before, after) elements of constant_value around axis i."""
    if (
        not isinstance(paddings, (list, tuple))
        or len(paddings) != x.ndim
        or any(len(p) != 2 or min(p) < 0 for p in paddings)
    ):
        raise ValueError(
            f"pad: paddings is {paddings}; it must have two counts of at least 0 for each of the {x.ndim} axes of "
            f"{list(x.shape)}."
        )
    sides = [int(side) for pair in reversed(paddings) for side in pair]
    return _ops["pad"](x, sides, "constant", constant_value)


def _pad2d(mode):
    def function(x, padding):
        left, right, top, bottom = pair(padding, 4, f"{mode}: padding")
        return _ops["pad"](x, [left, right, top, bottom], mode)

    function.__name__ = function.__qualname__ = f"{'replication' if mode == 'replicate' else 'reflection'}_pad2d"
    function.__doc__ = "An image padded by its own elements: padding is one count, or left, right, top, bottom."
    return op(function)


reflection_pad2d, replication_pad2d = _pad2d("reflect"), _pad2d("replicate")


@op
def constant_pad2d(x, padding, constant_value=0):
    """An image padded by a value: padding is one count, or left, right, top, bottom."""
    return _ops["pad"](x, pair(padding, 4, "constant_pad2d: padding"), "constant", constant_value)


@op
def zero_pad_2d(x, padding):
    """An image padded by zeros: padding is one count, or left, right, top, bottom."""
    return constant_pad2d.fn(x, padding)


# Parts and positions


def _steps(x, begin, size):
    begin, size = list(begin), list(size)
    if len(begin) != x.ndim or len(size) != x.ndim:
        raise ValueError(
            f"slice: begin {begin} and size {size} must have one number for each of the {x.ndim} axes of "
            f"{list(x.shape)}."
        )
    for axis, (first, count) in enumerate(zip(begin, size)):
        n = x.shape[axis]
        first = 0 if first is None else first + n if first < 0 else first
        count = n - first if count in (None, -1) else count
        if not 0 <= first < n or not 0 < count <= n - first:
            raise ValueError(
                f"slice: axis {axis} of {list(x.shape)} has no {size[axis]} elements from {begin[axis]} on."
            )
        yield axis, first, count


@op(overrides="slice")
def slice(x, begin, size):
    """size[i] elements of each axis i from begin[i] on; a size of -1 or None is all that follow."""
    for axis, first, count in _steps(x, begin, size):
        if count != x.shape[axis]:
            x = _ops["narrow"](x, axis, first, count)
    return x


def _key(x, slices, what):
    """A key for indexing from (start, stop, step) of the first axes."""
    slices = list(slices)
    if len(slices) > x.ndim or any(not isinstance(s, (list, tuple)) or len(s) != 3 for s in slices):
        raise ValueError(
            f"{what}: takes (start, stop, step) for the first of the {x.ndim} axes of {list(x.shape)}; found {slices}."
        )
    if any(s[2] == 0 for s in slices):
        raise ValueError(f"{what}: a step is 0; it must not be.")
    return [builtins.slice(*s) for s in slices]


@op
def slice_v2(x, slice_tup_list):
    """x[start:stop:step, ...] for a list of (start, stop, step), of the first axes."""
    for axis, key in enumerate(_key(x, slice_tup_list, "slice_v2")):
        start, stop, step = key.indices(x.shape[axis])
        if step < 0:
            x, n = _ops["flip"](x, [axis]), x.shape[axis]
            start, stop, step = n - 1 - start, n - 1 - stop, -step
        x = _ops["slice"](x, axis, start, builtins.max(start, stop), step)
    return x


@op
def slice_update(x, update, slice_tup_list):
    """A copy of x in which x[start:stop:step, ...] is update."""
    key = tuple(_key(x, slice_tup_list, "slice_update"))
    if any(k.step is not None and k.step < 0 for k in key):
        raise ValueError("slice_update: steps must be positive.")
    result = x.clone()
    result[key] = update
    return result


@op(overrides="gather")
def gather(params, indices, validate_indices=None, axis=None, batch_dims=0):
    """The slices of params along axis that indices name, in the shape of indices.
    batch_dims: as many first axes of params and indices go together."""
    batch = int(batch_dims)
    if not 0 <= batch <= indices.ndim:
        raise ValueError(f"gather: batch_dims is {batch_dims}; indices {list(indices.shape)} have {indices.ndim} axes.")
    axis = one_axis(batch if axis is None else axis, params.ndim, "gather")
    if axis < batch:
        raise ValueError(f"gather: axis {axis} is one of the {batch} axes of batch_dims.")
    indices = indices.to(_C.int64)
    if batch == 0:
        if axis == 0 and params.ndim == 2:
            return _ops["embedding"](params, indices)
        found = _ops["index_select"](params, axis, indices.reshape(-1))
        return found.reshape(*params.shape[:axis], *indices.shape, *params.shape[axis + 1 :])
    if list(params.shape[:batch]) != list(indices.shape[:batch]):
        raise ValueError(
            f"gather: the first {batch} axes of params {list(params.shape)} and indices {list(indices.shape)} must be "
            "equal."
        )
    # One index for each slice along axis: the axes between and behind are walked by broadcasting.
    between, behind = list(params.shape[batch:axis]), list(params.shape[axis + 1 :])
    flat = indices.reshape(*indices.shape[:batch], *[1] * len(between), -1, *[1] * len(behind))
    flat = flat.expand(*params.shape[:batch], *between, flat.shape[axis], *behind)
    found = _ops["gather"](params, axis, flat)
    return found.reshape(*params.shape[:axis], *indices.shape[batch:], *behind)


@op
def dim_gather(input, dim, index):
    """input[..., index, ...] along dim, for each element of index."""
    return _ops["gather"](input, dim, index.to(_C.int64))


@op(overrides="gather_nd")
def gather_nd(params, indices):
    """The slices of params at the positions that the last axis of indices spells out."""
    return _ops["gather_nd"](params, indices.to(_C.int64))


@op(overrides="scatter_nd")
def scatter_nd(indices, updates, shape):
    """Zeros of a shape, to which updates are added at the positions that the last axis of indices spells out."""
    return _ops["scatter_nd"](indices.to(_C.int64), updates, [int(s) for s in shape])


@op(overrides="tensor_scatter_nd_update")
def tensor_scatter_nd_update(params, indices, updates):
    """A copy of params that holds updates at the positions that indices spell out."""
    return _ops["tensor_scatter_nd_update"](params, indices.to(_C.int64), updates)


@op
def tensor_scatter_nd_add(params, indices, updates):
    """params with updates added at the positions that indices spell out."""
    return params + _ops["scatter_nd"](indices.to(_C.int64), updates, list(params.shape))


@op(overrides="where")
def where(condition, x=None, y=None):
    """x where condition is not 0, else y."""
    if (x is None) != (y is None):
        raise ValueError("where: give both x and y, or neither.")
    if x is None:
        return argwhere.fn(condition)
    return _ops["where"](as_bool(condition), x, y)


@op(overrides=["argwhere", "nonzero"])
def argwhere(condition, dtype=None):
    """Not supported: how many positions there are is known only when the job runs."""
    raise NotImplementedError(
        "argwhere: how many positions there are is known only when the job runs, and blobs have shapes that are known "
        "before. Use where(condition, x, y) or masked_fill, or return the condition and call numpy.argwhere."
    )


nonzero = argwhere


@op(overrides="masked_fill")
def masked_fill(x, mask, value):
    """x with value where mask, which broadcasts to x, is not 0."""
    return _ops["masked_fill"](x, as_bool(mask), value)


def _descending(direction, what):
    if direction not in ("ASCENDING", "DESCENDING"):
        raise ValueError(f"{what}: direction is {direction!r}; it must be 'ASCENDING' or 'DESCENDING'.")
    return direction == "DESCENDING"


@op(overrides="sort")
def sort(input, axis=-1, direction="ASCENDING"):
    """input in order along axis."""
    axis, descending = _sorting(input, axis, direction, "sort")
    return _ops["sort"](input, axis, descending)[0]


@op(overrides="argsort")
def argsort(input, axis=-1, direction="ASCENDING"):
    """The positions, as int32, that bring input in order along axis."""
    axis, descending = _sorting(input, axis, direction, "argsort")
    return _ops["argsort"](input, axis, descending).to(_C.int32)


def _sorting(input, axis, direction, what):
    if isinstance(axis, str):  # 0.2 had no axis.
        axis, direction = -1, axis
    return one_axis(axis, input.ndim, what), _descending(direction, what)


# Values


@op(overrides="one_hot")
def one_hot(indices, depth, on_value=1, off_value=0, axis=-1, dtype=None):
    """on_value at the class that indices name, off_value at the others of depth, along a new axis;
    as dtype, or int32."""
    dtype = dtype or (_C.float32 if isinstance(on_value, float) or isinstance(off_value, float) else _C.int32)
    axis = one_axis(axis, indices.ndim + 1, "one_hot")
    flags = _ops["one_hot"](indices.to(_C.int64), int(depth)).to(dtype)
    if (on_value, off_value) != (1, 0):
        flags = flags * (on_value - off_value) + off_value
    return flags if axis == indices.ndim else _ops["movedim"](flags, -1, axis)


@op(overrides="cast")
def cast(x, dtype=None):
    """x in another dtype."""
    return x if dtype is None or x.dtype == dtype else x.to(dtype)


@op
def identity(x):
    """x itself."""
    return x


def identity_n(inputs, name=None):
    """Each of the inputs itself."""
    return [identity(x) for x in inputs]


computes(list)(identity_n)


def _number_dtype(value):
    return _C.float32 if isinstance(value, float) else _C.int32


@op
def constant(value, dtype=None, shape=None):
    """A blob of a shape, or [1], that holds value everywhere; as dtype, or float32 for floats and int32 for ints."""
    if not isinstance(value, (int, float)):
        raise TypeError(f"constant: value is {value!r}; it must be a number.")
    if shape is not None and not isinstance(shape, (list, tuple)):
        raise TypeError(f"constant: shape is {shape!r}; it must be a list or a tuple.")
    return _ops["full"]([1] if shape is None else list(shape), value, dtype=dtype or _number_dtype(value), **creation())


def constant_scalar(value, dtype=None, name=None):
    """A blob of shape [1] that holds value."""
    return constant(value, dtype, [1], name=name)


computes(lambda value, dtype=None: constant.fn(value, dtype, [1]))(constant_scalar)


@op
def range(start, limit=None, delta=1, dtype=None):
    """start, start + delta, ... up to limit; from 0 on if there is no limit.
    As dtype, or int64 for ints and float32 for floats."""
    if limit is None:
        start, limit = 0, start
    if not isinstance(delta, (int, float)) or delta == 0:
        raise ValueError(f"range: delta is {delta!r}; it must be a number and not 0.")
    dtype = dtype or (_C.float32 if any(isinstance(v, float) for v in (start, limit, delta)) else _C.int64)
    return _ops["arange"](start, limit, delta, dtype=dtype, **creation())


@op
def constant_like(like, value, dtype=None):
    """value in the shape of like."""
    return _ops["full_like"](like, value, dtype=dtype)


@op(overrides="zeros_like")
def zeros_like(like, dtype=None):
    """Zeros in the shape of like."""
    return _ops["zeros_like"](like, dtype=dtype)


@op(overrides="ones_like")
def ones_like(like, dtype=None):
    """Ones in the shape of like."""
    return _ops["ones_like"](like, dtype=dtype)


@op
def elem_cnt(input, dtype=None):
    """The number of elements of input, as [1] of int32 or dtype."""
    return _ops["full"]([1], input.numel(), dtype=dtype or _C.int32, **where_is(input))


@op(overrides="matmul")
def matmul(a, b, transpose_a=False, transpose_b=False):
    """The product of the matrices of the last two axes, each transposed first if so asked."""
    if a.ndim < 2 or b.ndim < 2:
        raise ValueError(f"matmul: takes blobs of two axes or more; found {list(a.shape)} and {list(b.shape)}.")
    return _ops["matmul"](a.transpose(-1, -2) if transpose_a else a, b.transpose(-1, -2) if transpose_b else b)


@op(overrides="diag")
def diag(input, diagonal=0):
    """The diagonal of a matrix, or the matrix with a diagonal."""
    return _ops["diag"](input, diagonal)


@op(overrides="smooth_l1_loss")
def smooth_l1_loss(prediction, label, beta=1.0):
    """0.5 d^2 / beta where |d| = |prediction - label| < beta, else |d| - beta / 2; not reduced."""
    return _ops["smooth_l1_loss"](prediction, label, reduction="none", beta=beta)


def sync_dynamic_resize(inputs, size, name=None):
    """Not supported: every blob's shape is known before the job runs."""
    raise NotImplementedError(
        "sync_dynamic_resize: blobs whose size is known only when the job runs are not supported. "
        "Take a slice of a fixed size."
    )


computes(sync_dynamic_resize)(sync_dynamic_resize)
__all__ = sorted(name for name, value in globals().items() if hasattr(value, "fn") and name[0] != "_")
