"""flow.deterministic(): what is promised of results' bits."""

from functools import wraps

from . import _C


class deterministic:
    """Sets what holds of the bits of results, for a `with` block, as a decorator, or, called alone, from then on.

    Results have the same bits in every run of the same program on the same layout anyway. layout_free=True: float32
    training has the same bits on every layout as well, on CPUs. Sums are taken in the order of a tree that the global
    index of their terms determines. All ranks set it alike: else their next collective raises an error. What it costs,
    what it holds for and what it does not: docs/guides/numerics.md.
    """

    def __init__(self, layout_free=False):
        self._layout_free = bool(layout_free)
        self._before = [_C.exchange_layout_free(self._layout_free)]
        self._set = True

    def __enter__(self):
        if self._set:  # by the constructor, for this block
            self._set = False
        else:
            self._before.append(_C.exchange_layout_free(self._layout_free))
        return self

    def __exit__(self, *error):
        _C.exchange_layout_free(self._before.pop())

    def __call__(self, function):
        if self._set:
            self._set = False
            _C.exchange_layout_free(self._before.pop())

        @wraps(function)
        def wrapped(*args, **kwargs):
            with deterministic(self._layout_free):
                return function(*args, **kwargs)

        return wrapped
