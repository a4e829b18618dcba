"""How a variable or a blob is distributed over the devices of its scope, and hints for that."""

from .blob import Blob
from .record import record

__all__ = ["assert_is_valid_distribute", "auto", "broadcast", "parallel_cast", "split"]


class Distribute:
    """One way; there is one object for each, so that `is` compares them. axis: of a split, else None."""

    def __init__(self, name, axis=None):
        self._name, self.axis = name, axis

    def sbp(self):
        """Holon's word for it; None leaves it open."""
        from holon import _C

        if self._name == "auto":
            return None
        return _C.sbp.broadcast if self.axis is None else _C.sbp.split(self.axis)

    def __repr__(self):
        return f"distribute.{self._name}({'' if self.axis is None else self.axis})"

    def __reduce__(self):
        return (
            (split, (self.axis,)) if self.axis is not None else ({"auto": auto, "broadcast": broadcast}[self._name], ())
        )


_AUTO, _BROADCAST = Distribute("auto"), Distribute("broadcast")
_SPLITS = [Distribute("split", axis) for axis in range(11)]


def split(axis):
    """Cut along the axis, a part for each device."""
    assert isinstance(axis, int) and not isinstance(axis, bool) and 0 <= axis <= 10, (
        f"distribute.split: axis is {axis!r}; it must be an int from 0 to 10."
    )
    return _SPLITS[axis]


def broadcast():
    """A copy on each device."""
    return _BROADCAST


def auto():
    """As the ops find best."""
    return _AUTO


def assert_is_valid_distribute(distribute):
    assert isinstance(distribute, Distribute), (
        f"{distribute!r} is none of distribute.split(axis), distribute.broadcast() and distribute.auto()."
    )


def parallel_cast(input, name=None, distribute=None, gradient_distribute=None):
    """input as its consumers shall see it: a hint about the layout, and about that of its gradient;
    the values are the same."""
    for d in (distribute, gradient_distribute):
        if d is not None:
            assert_is_valid_distribute(d)
            axis = d.axis
            assert axis is None or axis < len(input.shape), (
                f"parallel_cast: {input!r} has no axis {axis} to split along."
            )
    sbp, grad_sbp = (d and d.sbp() for d in (distribute, gradient_distribute))

    def cast(x):
        if not x.is_global or (sbp is None and grad_sbp is None):
            return x
        return x.to_global(x.placement, x.sbp if sbp is None else sbp, grad_sbp=grad_sbp)

    assert isinstance(input, Blob), f"parallel_cast: takes a blob, got {type(input).__name__}."
    for d in (distribute, gradient_distribute):
        if d is not None and d.axis is not None and not input._job.scope().mirrored:
            input._job.check_split(f"parallel_cast: {input.op_name}", d.axis, input.shape)
    out = record(cast, (input,), {}, "parallel_cast", name)
    out._distribute = distribute
    return out


def __getattr__(name):
    # Names of earlier versions.
    from . import scope

    old = {
        "mirrored_strategy": "mirrored_view",
        "consistent_strategy": "consistent_view",
        "mirrored_strategy_enabled": "mirrored_view_enabled",
        "consistent_strategy_enabled": "consistent_view_enabled",
    }
    if name in old:
        return getattr(scope, old[name])
    raise AttributeError(f"distribute has no '{name}'. It has {', '.join(__all__)}.")
