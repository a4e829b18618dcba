"""Transfers between stages whose tensors lie on cuda devices:
over links from device to device, and through the host's memory."""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from harness import ranks  # noqa: E402
from harness.ports import free_port  # noqa: E402

EMULATED = "emulated" in os.environ.get("HOLON_CUDA_LIBRARY", "")
emulated_only = pytest.mark.skipif(not EMULATED, reason="what the emulator is told to do")
BUILD = ranks.ROOT / "build/dev"
CASES = {
    "device_pairs": 4,
    "device_orders": 2,
    "device_circles": 3,
    "device_pipeline": 4,
    "device_links": 2,
    "device_background": 2,
}


def processes(count, mode, timeout=120, **extra):
    """boxing_rank_program on so many ranks: for each its exit status and output."""
    port = free_port()
    running = []
    for rank in range(count):
        env = ranks.environment(
            RANK=rank,
            WORLD_SIZE=count,
            LOCAL_RANK=rank,
            LOCAL_WORLD_SIZE=count,
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
            HOLON_MACHINE_COSTS="fixed",
            EMULATED_DEVICES=4,
            **{k: v(rank) if callable(v) else v for k, v in extra.items()},
        )
        output = tempfile.TemporaryFile("w+")
        running.append(
            (subprocess.Popen([BUILD / "bin/boxing_rank_program", mode], env=env, stdout=output, stderr=output), output)
        )
    done = []
    for process, output in running:
        try:
            process.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        output.seek(0)
        done.append((process.returncode, output.read()))
        output.close()
    return done


# Links are made while the first sends are under way, or, slowly, in the middle of it;
# work waits until somebody waits for it.
SETTINGS = [{}, {"EMULATED_LINK_MS": 300}, {"EMULATED_LAZY": 1}, {"EMULATED_LAZY": 1, "EMULATED_LINK_MS": 300}]


@pytest.mark.parametrize(
    "settings",
    SETTINGS[:1] + [pytest.param(s, marks=emulated_only) for s in SETTINGS[1:]],
    ids=lambda s: " ".join(s) or "plain",
)
def test_ranks_that_are_threads(settings):
    command = [BUILD / "tests/prepared_test", "--gtest_filter=DevicePointToPoint.*"]
    env = ranks.environment(EMULATED_DEVICES=4, HOLON_MACHINE_COSTS="fixed", **settings)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0 and "[  PASSED  ] 6 tests." in done.stdout, done.stdout[-3000:] + done.stderr[-1000:]


@emulated_only
@pytest.mark.parametrize("settings", SETTINGS[:3], ids=lambda s: " ".join(s) or "plain")
@pytest.mark.parametrize("mode", CASES)
def test_ranks_that_are_processes(mode, settings):
    done = processes(CASES[mode], mode, **settings)
    assert [code for code, _ in done] == [0] * CASES[mode], done


@emulated_only
@pytest.mark.parametrize("mode", ["device_pairs", "device_orders", "device_circles", "device_pipeline"])
def test_ranks_on_several_hosts(mode):
    done = processes(CASES[mode], mode, HOLON_HOST=lambda rank: f"host{rank % 2}")
    assert [code for code, _ in done] == [0] * CASES[mode], done


@emulated_only
@pytest.mark.parametrize(
    "settings, why",
    [
        ({"HOLON_CUDA_LINKS": 0}, None),
        ({"EMULATED_NO_NCCL": 1}, "EMULATED_NO_NCCL is set"),
        ({"EMULATED_ONE_DEVICE": 1}, "share a device"),
    ],
    ids=["off", "no library", "one device"],
)
def test_without_links_data_travels_through_the_host(settings, why):
    done = processes(4, "device_pairs", HOLON_LOG="comm", **settings)
    text = "".join(t for _, t in done)
    assert [code for code, _ in done] == [0] * 4 and "from the device of rank" not in text, text[-2000:]
    assert ("goes through host memory" in text) == (why is not None) and (why or "") in text, text[-2000:]


@emulated_only
@pytest.mark.parametrize(
    "mode, words",
    [
        ("sender_dies", ["rank 1", "without sending"]),
        ("sender_dies_after_sending", ["rank 1"]),
        ("receiver_does_not_come", ["between the cuda devices of ranks [0, 1]", "rank 0 has waited 3 s"]),
        ("receiver_dies", ["between the cuda devices of ranks [0, 1]", "rank 1"]),
    ],
)
def test_a_rank_that_is_gone_is_named(mode, words):
    start = time.time()
    done = processes(2, mode, timeout=60, HOLON_COMM_TIMEOUT_S=3, EMULATED_LAZY=int("after" in mode))
    code, text = done[0]
    assert code == 1 and "heard:" in text and "nothing was wrong" not in text, text
    for word in words:
        assert word in text, text
    assert time.time() - start < 55


@pytest.mark.parametrize(
    "n, schedule, settings",
    [
        (2, "1f1b", {}),
        (2, "zero_bubble", {}),
        (4, "1f1b", {}),
        (4, "zero_bubble pairs", {}),
        pytest.param(4, "zero_bubble", {"EMULATED_LAZY": 1}, marks=emulated_only),
        pytest.param(2, "1f1b", {"EMULATED_NO_NCCL": 1}, marks=emulated_only),
        pytest.param(2, "1f1b", {"HOLON_CUDA_GRAPHS": 0}, marks=emulated_only),
    ],
)
def test_a_pipeline_trains_as_on_the_cpu(n, schedule, settings):
    if not EMULATED:
        import holon

        if holon.cuda.device_count() < n:
            pytest.skip(f"{n} cuda devices are needed")
    done = ranks.launch(
        HERE / "programs/pipeline.py", n, timeout=150, EMULATED_DEVICES=4, WORDS=schedule, HOLON_LOG="comm", **settings
    )
    assert done.returncode == 0 and done.stdout.count("agrees") == n, done.stdout + done.stderr[-3000:]
    # Six micro-batches, forth and back: most of the later steps' go over links.
    sent = len(re.findall(r"from the device of rank \d+ to that of rank", done.stderr))
    assert (sent > 12) == ("EMULATED_NO_NCCL" not in settings), sent
