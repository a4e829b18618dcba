"""Other tests once more in orders that a device may choose: work is done when somebody waits for it, and threads and
blocks run from the last to the first (emulator/cuda_runtime.h). A part of them; by hand, all: EMULATED_LAZY=1 pytest
tests/cuda."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness import ranks

HERE = Path(__file__).parent
EMULATED = "emulated" in os.environ.get("HOLON_CUDA_LIBRARY", "")
SELECTION = {
    "EMULATED_LAZY": ["test_every_op.py::test_example", "test_memory.py", "test_runtime.py"],
    "EMULATED_REVERSED": ["test_every_op.py::test_example", "test_norm.py", "test_reduce.py", "test_softmax.py"],
}


@pytest.mark.skipif(not EMULATED, reason="a device chooses by itself")
@pytest.mark.parametrize("setting", SELECTION)
def test_in_another_order(setting):
    if os.environ.get(setting) == "1":
        pytest.skip("so do all tests of this run")
    files, env = [str(HERE / name) for name in SELECTION[setting]], ranks.environment(**{setting: 1})
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, env=env, cwd=ranks.ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-4000:] + done.stderr[-1000:]
    passed = int(done.stdout.split(" passed")[0].split()[-1])
    assert passed > 300, done.stdout[-1000:]
