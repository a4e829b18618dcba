"""Every test of several hosts runs with each network between them, but for those marked one_network, where no data
crosses between hosts or the network does not matter."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import joining  # noqa: E402

NETWORKS = ["gloo", "ucx"]


def pytest_generate_tests(metafunc):
    if not metafunc.definition.get_closest_marker("one_network"):
        metafunc.parametrize("network", NETWORKS, indirect=True)


@pytest.fixture(autouse=True)
def network(request, monkeypatch):
    name = getattr(request, "param", None)
    if name is None:
        return None
    if not joining.module(name).exists():
        pytest.skip(f"this build has no {name}: see the table in holon/comm/hosts/net/connect.cpp for what it needs")
    monkeypatch.setenv("HOLON_NETWORK", name)
    return name
