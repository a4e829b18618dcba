"""Ranks are killed or stopped while one job exports weights to another: all others go on or raise, and what receives
has one state or the next, never a mixture."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import transfers  # noqa: E402

ROUNDS = 200


def test_transfers(rounds):
    bad = []
    for seed in rounds.seeds(ROUNDS):
        trouble, what = transfers.play(seed)
        rounds.end(seed, what, trouble)
        bad += [trouble] if trouble else []
    assert not bad, f"{len(bad)} of {rounds.ended} rounds were bad:\n" + "\n".join(bad)
