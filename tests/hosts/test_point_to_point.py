"""Transfers between pipeline stages that are on several hosts."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from namespaces import Hosts  # noqa: E402
from test_hosts import BUILD, by_hand, finish, pytestmark  # noqa: E402, F401


@pytest.mark.parametrize("mode", ["point_to_point_hosts", "pipeline"])
@pytest.mark.parametrize("count, per_host", [(2, 2), (4, 1)])
def test_transfers(mode, count, per_host):
    with Hosts(count) as hosts:
        command = [BUILD / "bin/boxing_rank_program", mode]
        codes, outputs = finish(by_hand(hosts, per_host, command, HOLON_MACHINE_COSTS="fixed"))
    assert codes == [0] * 4, outputs
