"""Texts and defaults are OneFlow's in tests of oneflow only, and draws of other tests go on as they were: all are the
process's, which the tests share. A conftest.py imports what is here."""

from operator import attrgetter

import pytest
from oneflow.elsewhere import DEFAULTS, METHODS

import holon

_HOLONS = {"prefix": "holon", "gather": False}
# Before any test has used oneflow, which sets its own.
_ATTRIBUTES = [(attrgetter(path)(holon), name) for path, name, _ in DEFAULTS] + [(holon.Tensor, m) for m in METHODS]
_OF_HOLON = [vars(owner)[name] for owner, name in _ATTRIBUTES]


def pytest_collection_finish(session):
    _as_holon()


def _as_holon():
    holon.set_printoptions(**_HOLONS)
    for (owner, name), value in zip(_ATTRIBUTES, _OF_HOLON):
        setattr(owner, name, value)


@pytest.fixture(autouse=True)
def texts_of_oneflow():
    import oneflow

    holon.set_printoptions(prefix="oneflow", gather=True)
    for path, name, value in DEFAULTS:
        setattr(attrgetter(path)(holon), name, value)
    for name in METHODS:
        setattr(holon.Tensor, name, getattr(oneflow._C, name))
    draws = holon.get_rng_state()
    yield
    holon.set_rng_state(draws)
    _as_holon()
