"""The texts say "oneflow" in these tests only, and draws of other tests go on as they were: both are the process's, which all tests share."""
import pytest

import holon

_HOLONS = {"prefix": "holon", "gather": False}


def pytest_collection_finish(session):
    holon.set_printoptions(**_HOLONS)


@pytest.fixture(autouse=True)
def texts_of_oneflow():
    holon.set_printoptions(prefix="oneflow", gather=True)
    draws = holon.get_rng_state()
    yield
    holon.set_rng_state(draws)
    holon.set_printoptions(**_HOLONS)
