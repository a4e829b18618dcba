"""1,000 saves into folders, most of them interrupted: none loses what was there, and nothing piles up."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import saves  # noqa: E402

ROUNDS, IN_ONE_FOLDER = 1000, 250


@pytest.mark.parametrize("form", ["holon", "hf"])
def test_no_save_loses_a_checkpoint(rounds, tmp_path, form):
    results = []
    for first in rounds.seeds(ROUNDS, IN_ONE_FOLDER):
        for r in saves.stream(str(tmp_path / f"checkpoint{first}"), first, IN_ONE_FOLDER - 1, form):
            results.append(r)
            rounds.end(r["seed"], f"{r['world']} ranks, {'complete' if r['complete'] else 'interrupted'}", r["bad"])
        bad = [r for r in results if r["bad"]]
        assert not bad, f"seeds {[r['seed'] for r in bad]}, the first: {bad[0]}"
    complete = sum(r["complete"] for r in results)
    new = sum(r["found"] == r["before"] + 1 for r in results)
    old = len(results) - new
    rounds.say(f"{len(results)} saves: {complete} complete, {new} with the new state, {old} with the old, 0 lost")
    if len(results) == ROUNDS:  # the faults strike at all
        assert complete < 900 and new - complete > 10 and old > 50
