"""Campaigns: hundreds of rounds of random faults, each from a seed. `./dev test --campaigns --seed N` runs all of them.

A test here takes `rounds`, which gives round i the seed N + i as long as there is time, and says what came of each
round when it ends. Its failure says which seeds were bad, so that one round can be run again alone.
"""

import time

import pytest

LAST_ROUND_S = 600  # of a test's limit, after the last round has begun


class Rounds:
    """A campaign's rounds: their seeds, and a line on the terminal for each."""

    def __init__(self, first, minutes, say):
        self._first, self._until, self._say = first, time.monotonic() + minutes * 60, say
        self._begin = time.monotonic()
        self.begun = self.ended = 0

    def seeds(self, count, step=1):
        """The first seeds of groups of `step` rounds; one group at least, and no more when the time is up."""
        for self.begun in range(step, count + step, step):
            yield self._first + self.begun - step
            if time.monotonic() > self._until and self.begun < count:
                self.say(f"the time is up: {self.begun} of {count} rounds; --seed {self._first + self.begun} goes on")
                return

    def end(self, seed, what, trouble="", step=1):
        """Says what came of the round of the seed, or of `step` rounds from it."""
        self.ended += step
        seeds = f"seed {seed}" if step == 1 else f"seeds {seed} to {seed + step - 1}"
        self.say(f"{self.ended} after {time.monotonic() - self._begin:.0f} s: {seeds}, {what}: {trouble or 'well'}")

    def say(self, line):
        self._say(line)


@pytest.fixture
def rounds(request, capsys):
    def say(line):
        with capsys.disabled():
            print(f"\n{line}", end="", flush=True)  # pytest has begun a line

    return Rounds(request.config.getoption("--seed"), request.config.getoption("--minutes"), say)


def pytest_collection_modifyitems(items):
    for item in items:
        if "campaigns" in item.path.parts:
            limit = item.config.getoption("--minutes") * 60 + LAST_ROUND_S
            item.add_marker(pytest.mark.timeout(limit), append=False)  # a campaign's limit, not a test's
