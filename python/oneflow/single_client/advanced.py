"""One blob as a list with one blob for each device of the scope, and back."""

from holon import _C

from .blob import Blob
from .record import op

__all__ = ["distribute_add", "distribute_clone", "distribute_concat", "distribute_map", "distribute_split"]


def _devices():
    from . import job, session

    current = job.current("advanced.distribute")
    return len(session.default().ranks_of(current.scope().placement))


@op
def _clone(x, n):
    return [x] * n if n == 1 else [x.clone() for _ in range(n)]


@op
def _split(x, n, axis):
    size, more = divmod(x.shape[axis], n)
    return list(_C.ops["split"](x, [size + (i < more) for i in range(n)], axis))


@op
def _add(xs):
    total = xs[0]
    for x in xs[1:]:
        total = total + x
    return total


@op
def _concat(xs, axis):
    return _C.ops["cat"](xs, axis)


def _check(what, xs):
    assert isinstance(xs, (list, tuple)) and all(isinstance(x, Blob) for x in xs), (
        f"advanced.{what}: takes a list of blobs, one for each device."
    )
    n = _devices()
    assert len(xs) == n, f"advanced.{what}: got {len(xs)} blobs; the scope has {n} devices."


def distribute_clone(x, name=None):
    """x for each device."""
    return _clone(x, _devices(), name=name)


def distribute_split(x, axis=0, name=None):
    """The parts of x along axis, one for each device; sizes differ by one at most."""
    n = _devices()
    if x.shape[axis] < n:
        raise ValueError(
            f"advanced.distribute_split: {x!r} has {x.shape[axis]} along axis {axis}, which {n} devices cannot share."
        )
    return _split(x, n, axis, name=name)


def distribute_add(xs, name=None):
    """The sum of the devices' blobs."""
    _check("distribute_add", xs)
    return _add(list(xs), name=name)


def distribute_concat(xs, axis=0, name=None):
    """The devices' blobs one after the other along axis."""
    _check("distribute_concat", xs)
    return _concat(list(xs), axis, name=name)


def distribute_map(xs, f, axis=0):
    """f of each device's parts of the blobs xs, put together again."""
    several = isinstance(xs, (list, tuple))
    results = [f(*parts) for parts in zip(*(distribute_split(x, axis) for x in (xs if several else [xs])))]
    if not isinstance(results[0], (list, tuple)):
        return distribute_concat(results, axis)
    return tuple(distribute_concat(list(parts), axis) for parts in zip(*results))
