"""Worlds start while strangers scan their ports, send garbage and half messages, replay what ranks have said,
and stay."""

import collections
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "hosts"))
import joining  # noqa: E402

ROUNDS = 300


def test_strangers(rounds):
    bad, came = [], collections.Counter()
    for seed in rounds.seeds(ROUNDS):
        trouble, kinds = joining.play(seed)
        rounds.end(seed, f"{sum(kinds.values())} strangers", trouble)
        bad += [trouble] if trouble else []
        came.update(kinds)
    rounds.say(f"{rounds.ended} rounds; strangers: {dict(came)}")
    assert not bad, f"{len(bad)} of {rounds.ended} rounds were bad:\n" + "\n".join(bad)
    assert all(came[kind] > rounds.ended for kind in ("silent", "half", "garbage", "recorded")), came
