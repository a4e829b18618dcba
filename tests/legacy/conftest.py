"""Each test has a session of its own."""

import oneflow as flow
import pytest
from harness.oneflow_texts import pytest_collection_finish, texts_of_oneflow  # noqa: F401


@pytest.fixture(autouse=True)
def session():
    flow.clear_default_session()
    yield
    flow.clear_default_session()
