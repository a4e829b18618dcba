"""Boxing, the moving of data between layouts: what it would do, and what ops may do of it by themselves."""

from .. import _C

__all__ = ["boxing_policy", "counters", "enable_fusion", "events", "explain", "nccl", "parameter_policy"]

explain = _C.explain
boxing_policy = _C.boxing_policy
parameter_policy = _C.parameter_policy


def counters():
    """Returns how often ops have moved data by themselves on this rank, and how many bytes: events, moves, bytes,
    and parameters, the moves of parameters."""
    return _C.boxing_counters()


def events():
    """Returns the last such moves on this rank, oldest first: op, from, to, shape, dtype, bytes, parameter, line."""
    return _C.boxing_events()


def enable_fusion(flag=True):
    """Accepted, as all of boxing.nccl; has no effect."""


def __getattr__(name):
    if name == "nccl":
        from importlib import import_module

        return import_module(f"{__name__}.nccl")
    from .._missing import error

    raise error("boxing", name, __all__)
