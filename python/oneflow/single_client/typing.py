"""Annotations of job functions: what a call takes (placeholders) and what it returns."""

from typing import Dict, Generic, List, Tuple, TypeVar  # noqa: UP035

from holon import _C

__all__ = ["Bundle", "Callback", "Dict", "List", "ListListNumpy", "ListNumpy", "Numpy", "Tuple"]

T = TypeVar("T")


class Placeholder:
    """An argument of a job function: arrays of this shape and dtype.
    The subclass that is made for each is the annotation."""

    kind = shape = dtype = batch_axis = None


def _placeholder(kind):
    def make(shape, dtype=None, batch_axis=0):
        what = f"{kind}.Placeholder"
        assert isinstance(shape, (list, tuple)), f"{what}: shape must be a tuple of ints, got {shape!r}."
        assert all(isinstance(d, int) and not isinstance(d, bool) and d > 0 for d in shape), (
            f"{what}: shape is {tuple(shape)}; all of it must be ints > 0."
        )
        assert batch_axis is None or isinstance(batch_axis, int), (
            f"{what}: batch_axis is {batch_axis!r}; it must be an int or None."
        )
        assert batch_axis is None or not shape or -len(shape) <= batch_axis < len(shape), (
            f"{what}: shape {tuple(shape)} has no axis {batch_axis}."
        )
        dtype = _C.parse_dtype("float32" if dtype is None else dtype)
        axis = batch_axis % len(shape) if batch_axis is not None and shape else None
        return type(what, (Placeholder,), {"kind": kind, "shape": tuple(shape), "dtype": dtype, "batch_axis": axis})

    return staticmethod(make)


class Numpy:
    """One array: the whole of a blob, however it is distributed."""

    Placeholder = _placeholder("Numpy")


class ListNumpy:
    """One array for each device, in the mirrored view."""

    Placeholder = _placeholder("ListNumpy")


class ListListNumpy:
    """A list of arrays for each device, in the mirrored view."""

    Placeholder = _placeholder("ListListNumpy")


class Callback(Generic[T]):
    """The call returns at once a function; give it a callback, which gets the result as T."""


class Bundle(Generic[T]):
    """Any nesting of tuples, lists and dicts of T."""
