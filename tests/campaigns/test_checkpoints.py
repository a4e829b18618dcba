"""1,000 rounds of saves by a Checkpointer, most of them interrupted: none loses or damages a checkpoint."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import checkpoints  # noqa: E402

ROUNDS, IN_ONE_FOLDER = 1000, 250


def test_no_round_loses_a_checkpoint(rounds, tmp_path):
    results = []
    for first in rounds.seeds(ROUNDS, IN_ONE_FOLDER):
        for r in checkpoints.stream(str(tmp_path / f"checkpoint{first}"), first, IN_ONE_FOLDER - 1):
            results.append(r)
            rounds.end(r["seed"], f"{r['world']} ranks, {'complete' if r['complete'] else 'interrupted'}", r["bad"])
        bad = [r for r in results if r["bad"]]
        assert not bad, f"seeds {[r['seed'] for r in bad]}, the first: {bad[0]}"
    complete = sum(r["complete"] for r in results)
    some = sum(r["before"] < r["found"] for r in results if not r["complete"])
    rounds.say(f"{len(results)} rounds: {complete} complete, {some} others with new checkpoints, 0 lost")
    if len(results) == ROUNDS:  # the faults strike at all
        assert complete < 900 and some > 50
