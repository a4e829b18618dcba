"""Each test has a session of its own."""

import pytest

import holon as flow


@pytest.fixture(autouse=True)
def session():
    flow.clear_default_session()
    yield
    flow.clear_default_session()
