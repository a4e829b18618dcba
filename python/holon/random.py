"""Random numbers: seeds and states. Element i of the n-th draw depends on the seed, n and i:
not on how a tensor is split."""

import os

from . import _C
from ._C import Generator, initial_seed, manual_seed

__all__ = ["Generator", "get_rng_state", "initial_seed", "manual_seed", "seed", "set_rng_state"]


def seed():
    """Seeds this rank's random numbers with a number that nobody knows before, and returns it.
    Ranks then draw apart."""
    value = int.from_bytes(os.urandom(7), "little")
    manual_seed(value)
    return value


def get_rng_state():
    """Returns the state of this rank's random numbers."""
    return _C.get_rng_state()


def set_rng_state(new_state):
    """Restores what get_rng_state() returned."""
    _C.set_rng_state(new_state)


def __getattr__(name):
    from ._missing import error

    raise error("random", name, __all__)
