"""Boxing, the moving of data between layouts: what it would do, and what ops may do of it by themselves."""
from . import _C

explain = _C.explain
boxing_policy = _C.boxing_policy


def counters():
    """Returns how often ops have moved data by themselves on this rank, and how many bytes: events, moves, bytes."""
    return _C.boxing_counters()


def events():
    """Returns the last such moves on this rank, oldest first: op, from, to, shape, dtype, bytes, line."""
    return _C.boxing_events()
