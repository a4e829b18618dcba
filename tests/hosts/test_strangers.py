"""Strangers come to the ports of a world that starts: it starts all the same, and none of them is in it."""

import collections
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import joining  # noqa: E402


def test_some_rounds():
    bad, came = [], collections.Counter()
    for seed in range(4):
        trouble, kinds = joining.play(seed)
        bad += [trouble] if trouble else []
        came.update(kinds)
    assert not bad, "\n".join(bad)
    assert sum(came.values()) > 0, "nobody came: nothing was tested"
