"""1,000 saves into one folder, most of them interrupted: none loses what was there, and nothing piles up."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import saves  # noqa: E402


@pytest.mark.timeout(3600)
def test_no_save_loses_a_checkpoint(seed, tmp_path):
    rounds = []
    while len(rounds) < 1000:  # in pieces, so that a pipe holds what is printed
        rounds += saves.run(str(tmp_path / f"checkpoint{len(rounds)}"), seed + len(rounds), 249)
        bad = [r for r in rounds if r["bad"]]
        assert not bad, f"seeds {[r['seed'] for r in bad]}, the first: {bad[0]}"
    complete = sum(r["complete"] for r in rounds)
    new = sum(r["found"] == r["before"] + 1 for r in rounds)
    print(
        f"{len(rounds)} saves: {complete} complete, {new} with the new state, {len(rounds) - new} with the old, 0 lost"
    )
    # The faults strike at all.
    assert complete < 900 and new - complete > 10 and len(rounds) - new > 50
