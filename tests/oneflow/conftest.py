"""The texts and defaults are OneFlow's in these tests only, and draws of other tests go on as they were: all are the process's, which the tests
share."""

import pytest

import holon

_HOLONS = {"prefix": "holon", "gather": False}
_DECAY = holon.optim.AdamW._weight_decay  # before any test has imported oneflow


def pytest_collection_finish(session):
    _as_holon()


def _as_holon():
    holon.set_printoptions(**_HOLONS)
    holon.optim.AdamW._weight_decay = _DECAY


@pytest.fixture(autouse=True)
def texts_of_oneflow():
    holon.set_printoptions(prefix="oneflow", gather=True)
    holon.optim.AdamW._weight_decay = 0.0
    draws = holon.get_rng_state()
    yield
    holon.set_rng_state(draws)
    _as_holon()
