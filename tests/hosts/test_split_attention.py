"""Attention over a sequence that is split over the ranks of several hosts."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import attention_program  # noqa: E402
from namespaces import Hosts  # noqa: E402
from test_hosts import by_hand, finish, pytestmark  # noqa: E402, F401

import holon as flow  # noqa: E402


@pytest.mark.parametrize(
    "n, per_host, way", [(2, 1, "ring"), (2, 1, "heads"), (2, 2, "ring"), (2, 2, "heads"), (3, 1, "ring")]
)
def test_results_are_those_of_one_rank(tmp_path, n, per_host, way):
    path = tmp_path / "result.npz"
    command = [sys.executable, Path(attention_program.__file__), path]
    with Hosts(n) as hosts:
        codes, outputs = finish(
            by_hand(hosts, per_host, command, HOLON_MACHINE_COSTS="fixed", HOLON_SEQUENCE_ATTENTION=way)
        )
    assert codes == [0] * n * per_host, outputs
    found = np.load(path)
    for i, wanted in enumerate(attention_program.results(flow.tensor)):
        np.testing.assert_allclose(found[f"arr_{i}"], wanted.numpy(), rtol=1e-10, atol=1e-10)
