from harness.oneflow_texts import pytest_collection_finish, texts_of_oneflow  # noqa: F401
