"""The checks of ./dev check-device, each on the emulator at small sizes. On a device they are the command itself."""

import json
import os
import subprocess
import sys

import pytest
from harness import ranks
from harness.torch_python import torch_python

EMULATED = os.environ.get("HOLON_CUDA_LIBRARY", "").endswith("emulated.so")
pytestmark = [
    pytest.mark.skipif(not EMULATED, reason="on a device, run ./dev check-device"),
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
sys.path.insert(0, str(ranks.ROOT / "tools"))
from check_device import curves, parts  # noqa: E402

sys.path.pop(0)
TORCH = torch_python()
with_torch = pytest.mark.skipif(TORCH is None, reason="no torch: HOLON_BENCH_TORCH_PYTHON names a Python that has it")


def check_device(results, *arguments, python=sys.executable, **extra):
    env = ranks.environment(OMP_NUM_THREADS=1, **extra)
    env["PYTHONPATH"] += os.pathsep + str(ranks.ROOT / "tools")
    command = [python, "-m", "check_device", "--results", str(results), "--jobs", "1", "--seconds", "800", *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=850)
    lines = {}
    for path in sorted(results.glob("?.jsonl")):
        lines[path.stem] = [json.loads(line) for line in path.read_text().splitlines()]
    return done, lines


def statuses(lines):
    return {line["check"]: line["status"] for line in lines if "status" in line}


def test_part_a(tmp_path):
    """Over a few files; ./dev test runs all of them."""
    only = [f"--only={name}" for name in ("device", "test_runtime", "test_sort", "test_conformance[[]one_rank[]]")]
    done, lines = check_device(tmp_path, "A", *only)
    assert done.returncode == 0, done.stdout + done.stderr
    assert statuses(lines["A"]) == dict.fromkeys(
        ["device", "test_runtime", "test_sort", "test_conformance[one_rank]"], "passed"
    )
    machine = {key: value for line in lines["A"] for key, value in line.items()}
    assert machine["name"] == "emulated device" and machine["libraries"]
    counts = {line["check"]: line["tests"] for line in lines["A"] if "tests" in line}
    assert counts["test_runtime"]["passed"] > 5 and counts["test_sort"]["passed"] > 20
    # A second call has nothing to do.
    done, again = check_device(tmp_path, "A", *only)
    assert done.returncode == 0 and again == lines


def test_every_file_of_tests_is_a_check(tmp_path):
    done, _ = check_device(tmp_path, "A", "--list")
    assert done.returncode == 0, done.stderr
    listed = {line.split()[1].split("[")[0] for line in done.stdout.splitlines() if line.startswith("A ")}
    files = {p.stem for p in (ranks.ROOT / "tests/cuda").glob("test_*.py")}
    assert listed == {"device"} | files - {"test_check_device", "test_pack"}


@pytest.fixture
def stand_ins(tmp_path):
    """NVIDIA's tools, as programs that run what they are given: what the checks ask of them is executed."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("compute-sanitizer", "ncu", "nsys"):
        # The program begins with the first argument that is a path to Python.
        (folder / name).write_text(
            f'#!/bin/sh\necho {name} "$@"\nuntil [ -x "$1" ] && [ -f "$1" ]; do shift; done\nexec "$@"\n'
        )
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def passed(done, lines, *, skipped=()):
    found = statuses(lines)
    assert done.returncode == 0 and found, done.stdout + done.stderr
    assert {name for name, status in found.items() if status != "passed"} == set(skipped), done.stdout
    return found


@with_torch
def test_part_b(tmp_path, stand_ins):
    done, lines = check_device(tmp_path / "results", "B", python=TORCH, **stand_ins)
    passed(done, lines["B"])
    log = (tmp_path / "results/B/racecheck_of_attention.log").read_text()
    assert log.startswith("compute-sanitizer --tool racecheck --error-exitcode 9 ")
    compared = [line for line in lines["B"] if "torch_norm" in line]
    assert len(compared) > 25


without_torch = pytest.mark.skipif(TORCH == sys.executable, reason="this Python has torch")


@without_torch
def test_part_b_without_torch(tmp_path):
    """What is missing is said, and is not a failure."""
    done, lines = check_device(tmp_path, "B", "--only", "attention*", "--only", "2^31*")
    found = [(line["status"], line["detail"]) for line in lines["B"]]
    assert done.returncode == 0
    assert found == [("skipped", "this Python has no torch: HOLON_PYTHON names one that has")] * 9


def test_a_tool_that_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert parts.find_tool("no-such-tool") is None
    (tmp_path / "no-such-tool").touch(0o755)
    assert parts.find_tool("no-such-tool") == str(tmp_path / "no-such-tool")


@with_torch
def test_part_c(tmp_path):
    done, lines = check_device(tmp_path, "C", python=TORCH)
    assert len(passed(done, lines["C"])) == 8


def test_part_c_without_torch(tmp_path):
    done, lines = check_device(tmp_path, "C", "--only", "memory")
    assert len(passed(done, lines["C"])) == 1
    assert "8 workloads run" in (tmp_path / "C/memory.log").read_text()


@with_torch
def test_part_d(tmp_path, stand_ins):
    done, lines = check_device(tmp_path / "results", "D", python=TORCH, **stand_ins)
    passed(done, lines["D"])
    assert (tmp_path / "results/D/ncu_of_a_step.log").read_text().startswith("ncu --profile-from-start off ")
    assert (tmp_path / "results/D/kernels-compiled.txt").read_text()


@without_torch
def test_part_d_without_torch(tmp_path):
    done, lines = check_device(tmp_path, "D", "--only", "training*", "--only", "kernels*")
    assert done.returncode == 0, done.stdout
    assert list(statuses(lines["D"]).items()) == [
        ("training, recorded", "passed"),
        ("training, launched", "passed"),
        ("training, eager", "passed"),
        ("kernels of a step, compiled", "skipped"),
        ("kernels of a step, eager", "skipped"),
    ]


def test_curves_that_differ_are_found():
    recorded = [4.0, 3.0] + [2.0] * curves.STEPS_ALIKE
    assert curves.difference("launched", recorded, recorded) == ""
    assert curves.difference("eager", recorded, [4.0, 3.01, *recorded[2:-1], 1.0]) == ""  # they drift apart
    said = curves.difference("launched", recorded, [*recorded[:-1], 2.0000002])
    assert said == f"step {len(recorded) - 1}: 2.0000002 launched and 2.0 recorded, which must have the same bits"
    assert curves.difference("eager", recorded, [4.0, 3.2, *recorded[2:]]).startswith(
        "step 1: 3.2 eager and 3.0 recorded, more"
    )
    assert curves.difference("eager", recorded, [4.0, float("nan"), *recorded[2:]]).startswith("step 1: nan")
    assert curves.difference("launched", recorded, recorded + [1.0]).startswith(f"{len(recorded) + 1} steps launched")


COMPARE = """
import torch
from check_device.against_torch import compare, twice
x = torch.randn(1000, dtype=torch.float64)
near = x.to(torch.bfloat16)
compare("near", near, near, x, 2.0**-9)
wrong = near.clone()
{mistake}
"""


@with_torch
@pytest.mark.parametrize(
    "mistake, says",
    [
        ("wrong[7] += 0.5; compare('one element', wrong, near, x, 2.0**-9)", "one element is off by"),
        ("wrong[7] = float('nan'); compare('NaN', wrong, near, x, 2.0**-9)", "NaN is off by nan"),
        ("wrong *= 1.01; compare('all', wrong, near, x, 2.0**-9)", "all is off by"),
        ("compare('shape', wrong[1:], near, x, 2.0**-9)", "shape: shape (999,)"),
        ("i = iter(range(9)); twice('sum', lambda: [x + next(i) * 2.0**-40])", "result 0 has other bits"),
    ],
)
def test_what_is_wrong_is_found(mistake, says):
    env = ranks.environment()
    env["PYTHONPATH"] += os.pathsep + str(ranks.ROOT / "tools")
    done = subprocess.run(
        [TORCH, "-c", COMPARE.format(mistake=mistake)], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1 and says in done.stderr, done.stderr
