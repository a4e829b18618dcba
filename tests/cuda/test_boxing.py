"""Communication between ranks whose tensors lie on cuda devices."""
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from harness import ranks  # noqa: E402

PROGRAMS = HERE / "programs"


def launch(program, n, timeout=120, **extra):
    return ranks.launch(PROGRAMS / program, n, timeout=timeout, EMULATED_DEVICES=4, **extra)


def passes(program, n, **extra):
    done = launch(program, n, **extra)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.parametrize("n", [2, 4])
def test_every_boxing_is_that_of_the_cpu(n):
    assert passes("boxing_pairs.py", n).stdout.count("boxings") == n
