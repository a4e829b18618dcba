"""Functions that few programs call."""

from . import _C


def broadcast_shapes(*shapes):
    """Returns the shape to which tensors of these shapes broadcast."""
    return (
        _C.Size(_C.ops["broadcast_tensors"](*(_C.ops["empty"](s) for s in shapes))[0].shape) if shapes else _C.Size(())
    )


def is_nonzero(input):
    """Returns whether the only element of a tensor is not 0. Collective for a global tensor."""
    return bool(input)


def _new(name):
    def function(x, *args, **kwargs):
        return getattr(x, name)(*args, **kwargs)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"As x.{name}(...)."
    return function


new_empty, new_full, new_ones, new_zeros = map(_new, ("new_empty", "new_full", "new_ones", "new_zeros"))


def get_default_dtype():
    """Returns the dtype of tensors of Python's floats: float32."""
    return _C.float32


def set_default_dtype(dtype):
    """Takes float32 only: what else tensors are to be is said where they are made."""
    if _C.parse_dtype(dtype) != _C.float32:
        raise NotImplementedError(
            f"set_default_dtype: new tensors are float32; {_C.parse_dtype(dtype)} must be said where they are made, "
            "by dtype=."
        )
