"""Convolutions and pools of the older API.
Their padding goes by words or by numbers for every axis of the blob, and before and behind an image it may differ."""

import math

from holon import _C

from .axes import channels_are_last, channels_first, channels_last, pair, where_is
from .record import computes, op

_ops = _C.ops


def _same(size, kernel, stride, dilation):
    """All padding that the words SAME... ask for along one axis."""
    out = -(-size // stride)
    return max(0, (out - 1) * stride + (kernel - 1) * dilation + 1 - size)


def _sides_in_numbers(padding, last, what):
    """((before, after), ...) of the image's axes from numbers for every axis of the blob."""

    def two(p):
        values = [p, p] if isinstance(p, int) else list(p)
        if len(values) != 2 or any(not isinstance(v, int) or v < 0 for v in values):
            raise ValueError(
                f"{what}: padding is {padding}; each axis takes a count of at least 0, or two: before and after."
            )
        return tuple(values)

    sides = [two(p) for p in padding]
    image = sides[1:-1] if last else sides[2:]
    if any(side != (0, 0) for side in (sides[:1] + sides[-1:] if last else sides[:2])):
        raise ValueError(
            f"{what}: padding is {padding}; the axes of samples and channels cannot be padded: give (0, 0) for them."
        )
    return image


def sides_of(padding, sizes, kernel, stride, dilation, last, what):
    """((before, after), ...) for each axis of an image.
    sizes are the image's, last: whether the blob's channels come last."""
    if isinstance(padding, str):
        word = padding.upper()
        if word == "VALID":
            return [(0, 0)] * len(sizes)
        if word not in ("SAME", "SAME_LOWER", "SAME_UPPER"):
            raise ValueError(
                f"{what}: padding is {padding!r}; it must be 'SAME', 'SAME_LOWER', 'SAME_UPPER', "
                "'VALID' or numbers for every axis."
            )
        sides = []
        for axis in zip(sizes, kernel, stride, dilation):
            needed = _same(*axis)
            less = needed // 2
            sides.append((less, needed - less) if word == "SAME_UPPER" else (needed - less, less))
        return sides
    if not isinstance(padding, (list, tuple)) or len(padding) != len(sizes) + 2:
        raise ValueError(
            f"{what}: padding is {padding!r}; in numbers it needs one or two for each of the blob's {len(sizes) + 2} "
            "axes."
        )
    return _sides_in_numbers(padding, last, what)


def _as_option(sides):
    """Sides as the padding of a convolution: one number an axis where they are alike,
    else all before and then all after."""
    before, after = [b for b, _ in sides], [a for _, a in sides]
    return before if before == after else before + after


def _padded(x, sides, value):
    return _ops["pad"](x, [n for side in reversed(sides) for n in side], "constant", value)


# Convolutions


def _convolve(n, what, input, filters, strides, padding, data_format, dilations, groups, bias=None):
    x, last = channels_first(input, data_format, what, n)
    if filters.ndim != n + 2:
        raise ValueError(f"{what}: filters are {list(filters.shape)}; they must have {n + 2} axes.")
    if last and groups != 1:
        raise ValueError(f"{what}: {groups} groups need the channels in front: data_format 'NC...'.")
    w = filters.permute(0, n + 1, *range(1, n + 1)) if last else filters
    strides, dilations = (
        pair(strides, n, f"{what}: strides"),
        pair(1 if dilations is None else dilations, n, f"{what}: dilations"),
    )
    if w.shape[1] * groups != x.shape[1] or w.shape[0] % groups:
        raise ValueError(
            f"{what}: filters {list(filters.shape)} in {groups} groups do not fit the {x.shape[1]} channels of the "
            f"input {list(input.shape)}."
        )
    sides = sides_of(padding, x.shape[2:], w.shape[2:], strides, dilations, last, what)
    y = _ops[f"conv{n}d"](x, w, bias, strides, _as_option(sides), dilations, groups)
    return channels_last(y) if last else y


def _convolution(n, data_format):
    what = f"conv{n}d"

    def conv(input, filters, strides, padding, data_format=data_format, dilations=None, groups=1):
        return _convolve(n, what, input, filters, strides, padding, data_format, dilations, groups)

    conv.__name__ = conv.__qualname__ = what
    conv.__doc__ = (
        "The convolution of input [n, channels, ...] with filters [out, channels / groups, window...]; "
        "channels come last in both if data_format says so."
    )
    return op(conv, overrides=what)


conv1d, conv2d, conv3d = _convolution(1, "NCW"), _convolution(2, "NCHW"), _convolution(3, "NCDHW")


@op
def compat_conv2d(input, filters, strides, padding, data_format="NCHW", dilations=None, groups=1):
    """conv2d for which SAME is SAME_UPPER."""
    if isinstance(padding, str) and padding.upper() == "SAME":
        padding = "SAME_UPPER"
    return _convolve(2, "compat_conv2d", input, filters, strides, padding, data_format, dilations, groups)


@op
def conv2d_transpose(
    value=None,
    filter=None,
    output_shape=None,
    strides=None,
    padding="VALID",
    data_format="NCHW",
    input=None,
    filters=None,
    dilations=None,
):
    """The transpose of a convolution: filter is [channels of value, out, window...], or with the last of them behind if
    the channels come last. output_shape: all sizes of the result, where several fit the padding."""
    what = "conv2d_transpose"
    value, filter = value if value is not None else input, filter if filter is not None else filters
    if value is None or filter is None or strides is None:
        raise ValueError(f"{what}: value, filter and strides must be given.")
    x, last = channels_first(value, data_format, what, 2)
    w = filter.permute(0, 3, 1, 2) if last else filter
    if filter.ndim != 4 or w.shape[0] != x.shape[1]:
        raise ValueError(
            f"{what}: the filter {list(filter.shape)} does not fit the {x.shape[1]} channels of {list(value.shape)}."
        )
    strides, dilations = (
        pair(strides, 2, f"{what}: strides"),
        pair(1 if dilations is None else dilations, 2, f"{what}: dilations"),
    )
    windows = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations)]
    whole = [(n - 1) * s + k for n, s, k in zip(x.shape[2:], strides, windows)]
    word = padding.upper() if isinstance(padding, str) else None
    if word not in (None, "SAME", "SAME_LOWER", "SAME_UPPER", "VALID"):
        raise ValueError(
            f"{what}: padding is {padding!r}; it must be 'SAME', 'SAME_LOWER', 'SAME_UPPER', "
            "'VALID' or numbers for every axis."
        )
    if word is None:
        sides = sides_of(padding, x.shape[2:], w.shape[2:], strides, dilations, last, what)
    # Sizes of the result: each is cut out of what a transpose without padding gives.
    if output_shape is not None:
        sizes = list(output_shape)[1:3] if last else list(output_shape)[2:]
        if len(output_shape) != 4:
            raise ValueError(f"{what}: output_shape is {output_shape}; it must have 4 sizes.")
    elif word is None:
        sizes = [n - b - a for n, (b, a) in zip(whole, sides)]
    else:
        sizes = whole if word == "VALID" else [n * s for n, s in zip(x.shape[2:], strides)]
    cuts = []
    for i, (n, full, s, k) in enumerate(zip(sizes, whole, strides, windows)):
        extra = sum(sides[i]) if word is None else 0 if word == "VALID" else max(0, full - n)
        if not 0 <= n - (full - extra) < s and not (word and word != "VALID" and -(-n // s) == x.shape[2 + i]):
            raise ValueError(
                f"{what}: output_shape {output_shape} cannot come of {list(value.shape)} by strides {strides}, "
                f"padding {padding!r} and a window of {k}."
            )
        less = extra // 2
        cuts.append((sides[i][0] if word is None else extra - less if word == "SAME_LOWER" else less, n))
    y = _ops["conv_transpose2d"](x, w, None, strides, 0, 0, 1, dilations)
    missing = [max(0, start + n - full) for (start, n), full in zip(cuts, whole)]
    if any(missing):
        y = _padded(y, [(0, m) for m in missing], 0)
    for axis, (start, n) in enumerate(cuts, 2):
        if n != y.shape[axis]:
            y = _ops["narrow"](y, axis, start, n)
    return channels_last(y) if last else y


def deconv2d(
    value=None,
    filter=None,
    output_shape=None,
    strides=None,
    padding="VALID",
    data_format="NCHW",
    name=None,
    input=None,
    filters=None,
    dilations=None,
):
    """conv2d_transpose by its older name."""
    return conv2d_transpose(
        value, filter, output_shape, strides, padding, data_format, input, filters, dilations, name=name
    )


computes(conv2d_transpose.fn)(deconv2d)


# Pools


def _hanging_over(sides, sizes, kernel, stride):
    """Sides of which the last is so large that a window begins at every stride within the image or before it."""
    result = []
    for (before, after), size, k, s in zip(sides, sizes, kernel, stride):
        out = -(-(size + before + after - k) // s) + 1
        if (out - 1) * s >= size + before:
            out -= 1
        result.append((before, max(after, (out - 1) * s + k - size - before)))
    return result


def _inside(x, sizes, sides, kernel, stride):
    """How many elements of each window are the image's own, as [1, 1, ...] on x's devices."""
    counts = None
    for axis, (size, (before, after), k, s) in enumerate(zip(sizes, sides, kernel, stride)):
        starts = range(-before, size + after - k + 1, s)
        own = [min(p + k, size) - max(p, 0) for p in starts]
        shape = [1] * x.ndim
        shape[2 + axis] = len(own)
        along = _C.tensor(own, dtype=x.dtype, **where_is(x)).reshape(shape)
        counts = along if counts is None else counts * along
    return counts


def _pool(n, kind, data_format):
    what = f"{kind}_pool{n}d"

    def pool(input, ksize, strides, padding, data_format=data_format, ceil_mode=False):
        x, last = channels_first(input, data_format, what, n)
        kernel, stride = pair(ksize, n, f"{what}: ksize"), pair(strides, n, f"{what}: strides")
        if min(kernel) < 1 or min(stride) < 1:
            raise ValueError(f"{what}: ksize {ksize} and strides {strides} must be 1 or more.")
        sizes = list(x.shape[2:])
        sides = sides_of(padding, sizes, kernel, stride, [1] * n, last, what)
        if any(size + b + a < k for size, (b, a), k in zip(sizes, sides, kernel)):
            raise ValueError(
                f"{what}: a window of {kernel} does not fit into the input {list(input.shape)} with padding "
                f"{padding!r}."
            )
        if any(b >= k or a >= k for (b, a), k in zip(sides, kernel)):
            raise ValueError(
                f"{what}: padding {padding!r} would leave windows of {kernel} without an element of the image."
            )
        if ceil_mode:
            sides = _hanging_over(sides, sizes, kernel, stride)
        simple = all(b == a and 2 * b <= k for (b, a), k in zip(sides, kernel))
        before = [b for b, _ in sides]
        if kind == "max":
            y = (
                _ops[what](x, kernel, stride, before)
                if simple
                else _ops[what](_padded(x, sides, -math.inf), kernel, stride)
            )
        elif simple:
            y = _ops[what](x, kernel, stride, before, False, False)
        else:
            sums = _ops[what](_padded(x, sides, 0), kernel, stride, 0, False, True, 1)
            y = sums / _inside(x, sizes, sides, kernel, stride)
        return channels_last(y) if last else y

    pool.__name__ = pool.__qualname__ = what
    pool.__doc__ = (
        "The largest element of each window of an image."
        if kind == "max"
        else "The mean of each window of an image; what is padding does not count."
    )
    return op(pool, overrides=what)


max_pool2d, avg_pool2d = _pool(2, "max", "NCHW"), _pool(2, "avg", "NCHW")
max_pool3d, avg_pool3d = _pool(3, "max", "NCDHW"), _pool(3, "avg", "NCDHW")


def _no_pool1d(what):
    def function(input, ksize, strides, padding, data_format="NCW", name=None):
        raise NotImplementedError(
            f"{what}: not there, as in the older API. Use {what[:-2]}2d on a blob with one more axis of size 1."
        )

    function.__name__ = function.__qualname__ = what
    function.__doc__ = "Not implemented, as in the older API."
    return function


max_pool1d, avg_pool1d = _no_pool1d("max_pool1d"), _no_pool1d("avg_pool1d")


@op
def same_padding(x, padding, data_format, kernel_size, strides, dilation_rate):
    """x with the zeros around it that padding, one of SAME_LOWER and SAME_UPPER, asks for."""
    n = x.ndim - 2
    last = channels_are_last(data_format, n, "same_padding")
    sizes = x.shape[1:-1] if last else x.shape[2:]
    numbers = (
        pair(v, n, f"same_padding: {w}")
        for v, w in ((kernel_size, "kernel_size"), (strides, "strides"), (dilation_rate, "dilation_rate"))
    )
    sides = sides_of(padding, sizes, *numbers, last, "same_padding")
    return _padded(x, sides + [(0, 0)] if last else sides, 0)


__all__ = sorted(name for name, value in globals().items() if hasattr(value, "fn") and name[0] != "_") + [
    "avg_pool1d",
    "max_pool1d",
]
