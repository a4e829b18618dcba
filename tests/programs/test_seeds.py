"""The specification's own programs, unmodified, by the runner that comes with them;
it starts ranks by hand and by the launcher."""

import os
import re
import subprocess
import sys

import pytest
from harness.specification import PROGRAMS, RUNNER

SLOW = ["002_2_mixed_parallelism_lenet"]


@pytest.mark.skipif(
    RUNNER is None, reason="no folder shared/seeds above this repository: the specification's programs are not here"
)
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in PROGRAMS])
@pytest.mark.parametrize("policy", ["silent", "raise"])
def test_program(name, policy):
    """None of them lets an op move data implicitly."""
    done = subprocess.run(
        [sys.executable, RUNNER, "--python", sys.executable, "--only", name],
        capture_output=True,
        text=True,
        env=os.environ | {"HOLON_BOXING_POLICY": policy},
    )
    assert re.search(r"^1/1 programs pass$", done.stdout, re.M), done.stdout + done.stderr
