"""Which network connects the hosts: HOLON_NETWORK, alike on all ranks."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import joining  # noqa: E402
import pytest  # noqa: E402
from conftest import NETWORKS  # noqa: E402
from harness.ports import free_port  # noqa: E402


def ranks(networks, mode="brief", **variables):
    """A rank for each, on two hosts in turn; how they ended and what they printed."""
    port = free_port()
    running = [
        joining.start(
            r,
            len(networks),
            port,
            "secret",
            mode,
            HOLON_NETWORK=n,
            HOLON_RENDEZVOUS_TIMEOUT_S=30,
            HOLON_COMM_TIMEOUT_S=30,
            **variables,
        )
        for r, n in enumerate(networks)
    ]
    try:
        outputs = [p.communicate(timeout=60)[0] for p in running]
    finally:
        for p in running:
            p.kill()
    return [p.returncode for p in running], outputs


def test_ranks_of_several_hosts(network):
    codes, outputs = ranks([network] * 3)
    assert codes == [0] * 3, outputs


def test_messages_of_all_sizes(network):
    codes, outputs = ranks([network] * 3, "sizes")
    assert codes == [0] * 3, outputs


@pytest.mark.one_network
@pytest.mark.skipif(not joining.module("ucx").exists(), reason="this build has no ucx")
@pytest.mark.parametrize("transports, gets", [("tcp", False), ("tcp,cma", True)])
def test_large_messages_are_one_sided_gets_where_a_transport_has_them(transports, gets):
    """CMA, as RDMA does, reads the memory of a process that takes no part in it."""
    codes, outputs = ranks(["ucx"] * 2, "count_reads", UCX_TLS=transports)
    assert codes == [0] * 2, outputs
    large = 3 * 9 * 2**20  # what a rank receives in messages of 9 MiB
    for text in outputs:
        found = int(re.search(r"reads (\d+) bytes", text)[1])
        assert found >= large if gets else found == 0, outputs


@pytest.mark.one_network
def test_an_unknown_network():
    codes, outputs = ranks(["carrier pigeon"] * 2)
    assert codes == [1, 1], outputs
    assert any('HOLON_NETWORK="carrier pigeon"' in text and "There are: gloo, ucx" in text for text in outputs), outputs


@pytest.mark.one_network
@pytest.mark.skipif(not all(joining.module(n).exists() for n in NETWORKS), reason="this build lacks a network")
def test_different_networks():
    codes, outputs = ranks(["gloo", "ucx", "gloo"])
    assert codes == [1] * 3, outputs
    asked = "the ranks ask for different networks between hosts: ranks 0, 2: gloo; rank 1: ucx. Set HOLON_NETWORK"
    assert all(asked in text for text in outputs), outputs
