"""flow.random of the older API. Every call of a job draws new numbers, which follow holon.manual_seed and do not depend
on how many devices share the work. A seed given here is accepted."""

import os

from holon import _C

from .axes import where_is
from .record import creation, op

_ops = _C.ops


@op
def bernoulli(x, seed=None, dtype=None):
    """1 with the probability that x says for each element, else 0; in x's dtype or dtype."""
    drawn = _ops["bernoulli"](x)
    return drawn if dtype is None else drawn.to(dtype)


@op
def coin_flip(batch_size=1, seed=None, probability=0.5):
    """For each of batch_size samples 1 with this probability, else 0; as int8."""
    if not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"coin_flip: batch_size is {batch_size!r}; it must be an int of 1 or more.")
    if not 0 <= probability <= 1:
        raise ValueError(f"coin_flip: the probability is {probability}; it must be between 0 and 1.")
    return (_ops["rand"]([batch_size], **creation()) < probability).to(_C.int8)


CoinFlip = coin_flip


@op
def generate_random_batch_permutation_indices(value, seed=None):
    """The numbers from 0 to the length of value in a random order, as int32."""
    return _order(value).to(_C.int32)


def _order(value):
    return _ops["argsort"](_ops["rand"]([value.shape[0]], **where_is(value)))


@op
def shuffle(value, seed=None):
    """The rows of value in a random order."""
    return _ops["index_select"](value, 0, _order(value))


def gen_seed(seed=None):
    """Returns seed, or a number that nobody knows before."""
    return int.from_bytes(os.urandom(7), "little") if seed is None else seed


__all__ = ["CoinFlip", "bernoulli", "coin_flip", "gen_seed", "generate_random_batch_permutation_indices", "shuffle"]
