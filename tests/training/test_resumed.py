"""The example's training is killed and started again: it continues with the same losses, and on another layout."""

import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from harness.ranks import ROOT, environment
from harness.text import write_text

SMALL = "--layers 2 --width 32 --heads 4 --length 32 --batch 8 --lr 0.01 --seed 3 --sample 1 --steps 24".split()


def start(tmp_path, ranks, *arguments):
    text = write_text(tmp_path)
    launcher = [sys.executable, "-m", "holon.distributed.launch", "--nproc_per_node", ranks]
    command = [
        *launcher,
        ROOT / "examples/gpt/train.py",
        "--data",
        text,
        *SMALL,
        *arguments,
    ]
    return subprocess.Popen(
        [str(c) for c in command], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def end(process):
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output


@pytest.mark.slow
@pytest.mark.parametrize("form", [[], ["--graph"]], ids=["eager", "graph"])
def test_a_killed_training_continues(tmp_path, form):
    whole, continued, other = (tmp_path / name for name in ("whole", "continued", "other"))
    end(start(tmp_path, 2, *form, "--dp", 2, "--curve", whole))
    saving = ["--checkpoints", tmp_path / "run", "--save-every", 4]
    process = start(tmp_path, 2, *form, "--dp", 2, *saving)
    saved = (tmp_path / "run").glob
    deadline = time.monotonic() + 200
    while not any(saved("step-*/holon-index.json")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)  # the launcher ends its ranks
    output, _ = process.communicate(timeout=60)
    assert any(saved("step-*/holon-index.json")), output
    end(start(tmp_path, 2, *form, "--dp", 2, *saving, "--curve", continued))
    whole, continued = np.loadtxt(whole), np.loadtxt(continued)
    assert len(whole) == 24 and (continued == whole).all()

    end(start(tmp_path, 4, *form, "--dp", 2, "--tp", 2, "--steps", 28, *saving, "--curve", other))
    again = np.loadtxt(other)
    assert len(again) == 28 and (again[:24] == whole).all() and np.isfinite(again).all() and again[-1] < 2 * whole[-1]
