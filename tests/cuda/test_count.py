"""./dev bench cuda --count on a small model: what it prints, and that a step asks no more of a device than it did."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "benchmarks/programs/cuda_count.py"
SIZES = ["--layers", "2", "--width", "128", "--heads", "2", "--vocabulary", "512", "--tokens", "32"]
# Of a step of that model: where they rise, something runs twice, is cast or filled in vain, or waits.
MOST = {
    "eager": {"kernels": 121, "library calls": 27, "copies and fills": 0, "waits of the host": 0},
    "compiled": {
        "launches by the host": 5,  # the step's numbers, its inputs, the recording, the loss
        "kernels": 81,
        "library calls": 27,
        "copies and fills": 4,
        "waits of the host": 0,
    },
}
pytestmark = pytest.mark.skipif(
    not os.environ.get("HOLON_CUDA_LIBRARY", "").endswith("_emulated.so"), reason="the emulator counts"
)


@pytest.fixture(scope="module")
def lines():
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *SIZES, "--kernels"], capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "update_tensors<" in done.stderr  # the kernels by name
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_lines(lines, tmp_path):
    assert all(list(line) == ["name", "value", "unit", "against", "ratio"] for line in lines)
    assert len({line["name"] for line in lines}) == len(lines) == 14
    assert all("step of 1 x 32" in line["name"] for line in lines)


@pytest.mark.parametrize("kind", MOST)
def test_a_step_asks_no_more_than_it_did(lines, kind):
    found = {line["name"].split(": ")[1]: line["value"] for line in lines if f", {kind}, " in line["name"]}
    assert not [f"{what}: {found[what]}, {most}" for what, most in MOST[kind].items() if found[what] > most]
    assert found["kernels"] > 50 and found["library calls"] >= 25  # it is a step
    # Each of the 0.49 million parameters is read and written at least once.
    assert found["bytes of kernels and copies"] > 8 * 490_000


def test_what_is_no_emulator_is_refused():
    env = os.environ | {"HOLON_CUDA_LIBRARY": "/nowhere/libholon_cuda.so"}
    done = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True, env=env, timeout=60)
    assert done.returncode == 1 and "./dev build holon_cuda_emulated" in done.stderr
