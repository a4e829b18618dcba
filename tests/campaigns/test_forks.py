"""Ranks that fork at random: children of all kinds, which act and end as they like,
and leave their parents' values and world alone."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.ranks import ROOT, launch

ROUNDS, OF_ONE_WORLD, AT_A_TIME = 300, 20, 2


@pytest.mark.timeout(3600)
def test_forks(seed):
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

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        worlds = list(pool.map(world, range(seed, seed + ROUNDS, OF_ONE_WORLD)))
    bad = {}
    for first, done in worlds:
        if done.returncode != 0:
            found = re.search(r"the round of seed (\d+) was bad", done.stderr)
            bad[int(found[1]) if found else first] = done.stderr[-3000:]
    assert not bad, f"{len(bad)} bad worlds, at the rounds of seeds {sorted(bad)}: {bad}"
