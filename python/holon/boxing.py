"""Boxing, the moving of data between layouts: what it would do, and what ops may do of it by themselves."""
from . import _C

explain = _C.explain


class boxing_policy:
    """Sets what happens when an op must move data by itself: nothing ("silent"), a log line ("warn") or an error ("raise").

    From now on, or as a `with` block until its end; for this rank.
    """

    def __init__(self, policy):
        self._before = _C.set_boxing_policy(policy)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        _C.set_boxing_policy(self._before)


def counters():
    """Returns how often ops have moved data by themselves on this rank, and how many bytes: events, moves, bytes."""
    return _C.boxing_counters()


def events():
    """Returns the last such moves on this rank, oldest first: op, from, to, shape, dtype, bytes."""
    return _C.boxing_events()
