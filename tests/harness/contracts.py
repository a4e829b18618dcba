"""The command ``holon contract`` and its like, and the layouts of a GPT on four ranks."""

import subprocess
import sys

from harness.ranks import environment

FIXED = {"HOLON_MACHINE_COSTS": "fixed"}

# Data-parallel ranks, tensor-parallel ranks, stages.
LAYOUTS = [(4, 1, 1), (1, 4, 1), (2, 2, 1), (2, 1, 2)]


def command(*arguments, cwd=None, **extra):
    """Runs the command holon; returns the finished process."""
    return subprocess.run(
        [sys.executable, "-m", "holon", *map(str, arguments)],
        env=environment(**FIXED, **extra),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
    )
