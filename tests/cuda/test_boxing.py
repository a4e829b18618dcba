"""Communication between ranks whose tensors lie on cuda devices."""

import os
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from harness import ranks  # noqa: E402

PROGRAMS = HERE / "programs"
EMULATED = "emulated" in os.environ.get("HOLON_CUDA_LIBRARY", "")
emulated_only = pytest.mark.skipif(not EMULATED, reason="what the emulator is told to do wrong")


def launch(program, n, *words, timeout=150, **extra):
    if not EMULATED:
        import holon

        if holon.cuda.device_count() < n:
            pytest.skip(f"{n} cuda devices are needed")
    command = " ".join(words)
    return ranks.launch(PROGRAMS / program, n, timeout=timeout, EMULATED_DEVICES=4, WORDS=command, **extra)


def passes(program, n, text, *words, **extra):
    done = launch(program, n, *words, **extra)
    assert done.returncode == 0 and done.stdout.count(text) == n, done.stdout + done.stderr
    return done


@pytest.mark.parametrize("n", [2, 4])
def test_every_boxing_is_that_of_the_cpu(n):
    done = passes("boxing_pairs.py", n, "boxings")
    assert "host memory" not in done.stderr


@emulated_only
@pytest.mark.parametrize("setting", ["EMULATED_LAZY", "EMULATED_NO_NCCL", "HOLON_CHECK"])
def test_boxing_where_work_waits_or_travels_through_the_host_or_is_compared(setting):
    done = passes("boxing_pairs.py", 2, "boxings", **{setting: 1})
    assert (done.stderr.count("goes through host memory") == 1) == (setting == "EMULATED_NO_NCCL")


@emulated_only
def test_boxing_between_hosts():
    done = passes("boxing_hosts.py", 4, "boxings")
    assert "host memory" not in done.stderr


@pytest.mark.parametrize("n", [2, 4])
def test_collectives_of_comm(n):
    passes("collectives.py", n, "all right")


@pytest.mark.parametrize("n, setting", [(2, "EMULATED_LAZY"), (2, "HOLON_OVERLAP"), (4, "HOLON_CHECK")])
def test_training_agrees_with_the_cpu(n, setting):
    passes("train_parallel.py", n, "pipeline graph agrees", "graph", **{setting: 1})


def fault(kind, **extra):
    start = time.time()
    done = launch("faults.py", 2, kind, HOLON_COMM_TIMEOUT_S=3, **extra)
    assert done.returncode != 0 and "nothing was wrong" not in done.stdout, done.stdout
    assert time.time() - start < 100
    return done.stdout


@emulated_only
@pytest.mark.parametrize("kind", ["dies", "throws", "late", "shape", "order"])
def test_ranks_that_fail_or_differ_raise(kind):
    text = fault(kind)
    for word in {
        "dies": [],
        "throws": ["no data"],
        "late": ["rank 1 did not arrive"],
        "shape": ["[4]", "[5]", "disagree"],
        "order": ["all_reduce", "reduce_scatter", "disagree"],
    }[kind]:
        assert word in text, text


@pytest.mark.parametrize("kind", ["shape", "order"])
def test_checked_calls_are_compared_before_they_reach_the_devices(kind):
    assert "disagree" in fault(kind, HOLON_CHECK=1)


@emulated_only
def test_what_hangs_on_the_device_is_aborted():
    text = fault("late", EMULATED_NCCL_HANGS=2)
    assert "all_reduce P -> B [4] float32 between the cuda devices of ranks [0, 1]" in text and "waited 3 s" in text, (
        text
    )
    text = fault("late", EMULATED_NCCL_HANGS=2, EMULATED_NCCL_ERROR="NCCL reports: remote process exited")
    assert "remote process exited" in text, text


@emulated_only
def test_a_member_that_never_comes_is_not_waited_for_without_end():
    text = fault("alone", EMULATED_NCCL_START="waits")
    assert "creating a communicator for the cuda devices of ranks [0, 1]" in text and "has waited 3 s" in text, text
    text = fault("alone", EMULATED_NCCL_START="fails")
    assert "out of memory" in text and "has waited" not in text, text
