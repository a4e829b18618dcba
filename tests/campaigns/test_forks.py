"""Ranks that fork at random: children of all kinds, which act and end as they like,
and leave their parents' values and world alone."""

import re
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

from harness.ranks import ROOT, launch

ROUNDS, OF_ONE_WORLD, AT_A_TIME = 300, 20, 2


def world(first):
    number = first // OF_ONE_WORLD
    # A child that hangs is found after two minutes, a rank that waits in vain after four.
    return first, launch(
        ROOT / "tests/faults/forks.py",
        2 + number % 2,
        timeout=3000,
        arguments=[first, OF_ONE_WORLD, 2 if number % 5 == 4 else 1],
        HOLON_COMM_TIMEOUT_S=240,
    )


def test_forks(rounds):
    bad = {}

    def judge(worlds):
        for first, done in (w.result() for w in worlds):
            said = done.stderr[-3000:] if done.returncode else ""
            rounds.end(first, "ranks that fork", said, OF_ONE_WORLD)
            if said or done.returncode:
                found = re.search(r"the round of seed (\d+) was bad", done.stderr)
                bad[int(found[1]) if found else first] = said

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        running = set()
        for first in rounds.seeds(ROUNDS, OF_ONE_WORLD):
            running.add(pool.submit(world, first))
            if len(running) == AT_A_TIME:
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                judge(ended)
        judge(wait(running).done)
    assert not bad, f"{len(bad)} bad worlds, at the rounds of seeds {sorted(bad)}: {bad}"
