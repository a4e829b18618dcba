"""Tests that ask for a number of hosts and ranks:
`@flow.unittest.skip_unless_1n2d()` on a class of tests or one of them."""

import unittest as _unittest

from holon import env

TestCase = _unittest.TestCase

__all__ = [
    "TestCase",
    "skip_unless",
    "skip_unless_1n1d",
    "skip_unless_1n2d",
    "skip_unless_1n4d",
    "skip_unless_2n1d",
    "skip_unless_2n2d",
    "skip_unless_2n4d",
]


def skip_unless(n, d):
    """Skips what it decorates unless there are n hosts with d ranks each."""
    found = env.get_node_size(), env.get_local_world_size()
    return _unittest.skipUnless(
        found == (n, d), f"for {n} hosts with {d} ranks each; here are {found[0]} with {found[1]}"
    )


def _fixed(n, d):
    def decorate():
        return skip_unless(n, d)

    decorate.__name__ = decorate.__qualname__ = f"skip_unless_{n}n{d}d"
    decorate.__doc__ = f"As skip_unless({n}, {d})."
    return decorate


skip_unless_1n1d, skip_unless_1n2d, skip_unless_1n4d = (_fixed(1, d) for d in (1, 2, 4))
skip_unless_2n1d, skip_unless_2n2d, skip_unless_2n4d = (_fixed(2, d) for d in (1, 2, 4))
