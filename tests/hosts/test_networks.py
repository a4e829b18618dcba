"""Which network connects the hosts: HOLON_NETWORK, alike on all ranks."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import joining  # noqa: E402
import pytest  # noqa: E402
from harness.ranks import free_port  # noqa: E402


def ranks(networks):
    """A rank for each, every one on a host of its own; how they ended and what they printed."""
    port = free_port()
    running = [
        joining.start(r, len(networks), port, "secret", HOLON_NETWORK=n, HOLON_RENDEZVOUS_TIMEOUT_S=30)
        for r, n in enumerate(networks)
    ]
    try:
        outputs = [p.communicate(timeout=60)[0] for p in running]
    finally:
        for p in running:
            p.kill()
    return [p.returncode for p in running], outputs


@pytest.mark.parametrize("network", ["gloo"])
def test_a_network_that_is_chosen(network):
    if not joining.module(network).exists():
        pytest.skip(f"this build has no {network}")
    codes, outputs = ranks([network] * 3)
    assert codes == [0] * 3, outputs


def test_an_unknown_network():
    codes, outputs = ranks(["carrier pigeon"] * 2)
    assert codes == [1, 1], outputs
    assert any('HOLON_NETWORK="carrier pigeon"' in text and "There are: gloo" in text for text in outputs), outputs
