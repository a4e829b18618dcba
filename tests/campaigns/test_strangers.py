"""Worlds start while strangers scan their ports, send garbage and half messages, replay what ranks have said,
and stay."""

import collections
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "hosts"))
import joining  # noqa: E402

ROUNDS = 300


def test_strangers(seed):
    bad, came = [], collections.Counter()
    for i in range(ROUNDS):
        trouble, kinds = joining.play(seed + i)
        bad += [trouble] if trouble else []
        if trouble or i % 20 == 19:
            print(f"round {i + 1}: {len(bad)} bad. {trouble}", flush=True)
        came.update(kinds)
    print(f"{ROUNDS} rounds; strangers: {dict(came)}")
    assert not bad, f"{len(bad)} of {ROUNDS} rounds were bad:\n" + "\n".join(bad)
    assert all(came[kind] > ROUNDS for kind in ("silent", "half", "garbage", "recorded")), came
