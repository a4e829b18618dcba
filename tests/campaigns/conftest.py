"""Campaigns: hundreds of rounds of random faults, each from a seed. `./dev test --campaigns --seed N` runs all of them.

A test here takes `seed`, gives round i the seed `seed + i`, and says in its failure which seeds were bad, so that one
round can be run again alone.
"""

import pytest


@pytest.fixture
def seed(request):
    return request.config.getoption("--seed")


def pytest_collection_modifyitems(items):
    for item in items:
        if "campaigns" in item.path.parts:
            item.add_marker(pytest.mark.timeout(3600), append=False)  # a campaign's limit, not a test's
