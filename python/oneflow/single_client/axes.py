"""What the older API's ops say about axes and shapes, brought to the forms that holon's ops take."""

from holon import _C

_ops = _C.ops


def one_axis(axis, ndim, what):
    """The axis, counted from the front."""
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise TypeError(f"{what}: axis is {axis!r}; it must be an int.")
    if not -ndim <= axis < ndim:
        raise ValueError(f"{what}: axis {axis} is out of range for {ndim} axes. Give one of {-ndim} to {ndim - 1}.")
    return axis % ndim


def some_axes(axis, ndim, what):
    """The axes that axis names: None is all of them, an int one."""
    if axis is None:
        return list(range(ndim))
    axes = [one_axis(a, ndim, what) for a in ([axis] if isinstance(axis, int) else axis)]
    if len(set(axes)) < len(axes):
        raise ValueError(f"{what}: axis {axis} names an axis twice.")
    return sorted(axes)


def as_flags(x):
    """A bool tensor as int8, the older API's dtype for true and false."""
    return x.to(_C.int8)


def as_bool(x):
    return x if x.dtype == _C.bool else x != 0


def pair(value, n, what):
    """One number for each of n axes."""
    values = [value] * n if isinstance(value, int) else list(value)
    if len(values) == 1:
        values *= n
    if len(values) != n:
        raise ValueError(f"{what} is {value}; it must be one number, or one for each of {n} axes.")
    return [int(v) for v in values]


def where_is(x):
    """The keywords that create a new tensor with x's device or placement, broadcast if global."""
    if not x.is_global:
        return {"device": x.device}
    return {"placement": x.placement, "sbp": [_C.sbp.broadcast] * len(x.sbp)}


def on_placement_of(x, like):
    """x where like is."""
    return _C.on_stage(x, like.placement) if x.is_global and like.is_global and x.placement != like.placement else x


def channels_first(x, data_format, what, n):
    """x as [n, channels, ...], and whether it came with its channels last."""
    last = channels_are_last(data_format, n, what)
    if x.ndim != n + 2:
        raise ValueError(f"{what}: the input is {list(x.shape)}; it must have {n + 2} axes, {data_format}.")
    return (x.permute(0, n + 1, *range(1, n + 1)) if last else x), last


def channels_last(x):
    """[n, channels, ...] with the channels moved to the end."""
    return x.permute(0, *range(2, x.ndim), 1)


def channels_are_last(data_format, n, what):
    """Whether a format such as "NHWC" has the channels last. n: axes of the image."""
    image = "DHW"[3 - n :]
    first, last = f"NC{image}", f"N{image}C"
    if not isinstance(data_format, str) or data_format.upper() not in (first, last):
        raise ValueError(f"{what}: data_format is {data_format!r}; it must be {first!r} or {last!r}.")
    return data_format.upper() == last
