"""Steps of nn.Graph recorded as CUDA graphs give, bit by bit, what they give unrecorded: with random draws, collectives
and updates in them."""

import ctypes
import functools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import holon as flow
from holon import nn

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from harness import ranks  # noqa: E402
from harness.ports import free_port  # noqa: E402

PROGRAMS = HERE / "programs"
EMULATED = "emulated" in os.environ.get("HOLON_CUDA_LIBRARY", "")
emulated_only = pytest.mark.skipif(not EMULATED, reason="what only the emulator tells or can be told")
pytestmark = pytest.mark.skipif(
    os.environ.get("HOLON_CUDA_GRAPHS", "1") != "1" or os.environ.get("HOLON_SYNC", "0") != "0",
    reason="nothing is recorded",
)
ALONE = ["one", "one clip", "one lamb", "one lars clip"]
TOGETHER = [
    "data",
    "tensor clip",
    *(pytest.param(how, marks=pytest.mark.slow) for how in ("data clip", "zero1 clip", "data lamb")),
    *(pytest.param(how, marks=pytest.mark.slow) for how in ("tensor", "zero1", "zero3", "amp", "accumulation")),
]


@functools.cache
def trained(how, **settings):
    """The bits of all steps; of rank 0, launches, recordings and waits of each step; what was said on stderr."""
    program = PROGRAMS / "recorded_steps.py"
    extra = {"EMULATED_DEVICES": 4, "EMULATED_STRICT": 0, "WORDS": how, **settings}
    if how in ALONE:
        env = {**os.environ, **{k: str(v) for k, v in extra.items()}}
        done = subprocess.run([sys.executable, str(program)], env=env, capture_output=True, text=True, timeout=150)
    else:
        if not EMULATED and flow.cuda.device_count() < 2:
            pytest.skip("2 cuda devices are needed")
        done = ranks.launch(program, 2, timeout=150, **extra)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    counts = [line.replace(",", "").split() for line in lines if line.startswith("# rank 0 step")]
    bits = sorted(line for line in lines if line.startswith("rank"))
    return bits, [(int(c[5]), int(c[7]), int(c[9])) for c in counts], done.stderr


@pytest.mark.parametrize("how", ALONE + TOGETHER)
def test_recorded_steps_are_those_that_are_not(how):
    recorded, counts, words = trained(how)
    plain, plain_counts, _ = trained(how, HOLON_CUDA_GRAPHS=0)
    assert len(recorded) == 7 * (1 if how in ALONE else 2) and recorded == plain
    assert "not recorded" not in words, words
    assert all(n == 0 for _, n, _ in plain_counts)
    # What is put between clipping and updates (ZeRO's boxing) may take another one.
    assert all(1 <= n <= (1 if how in ALONE else 2) for _, n, _ in counts[1:])
    if EMULATED:  # a step is a few launches: its recordings, the inputs and outputs, where its draws begin, the update
        pairs = list(zip(counts[1:], plain_counts[1:]))
        assert all(put <= 12 and put * 6 < before for (put, _, _), (before, _, _) in pairs), pairs
        assert "amp" in how or all(waited == 0 for _, _, waited in plain_counts[1:]), plain_counts


@emulated_only
@pytest.mark.slow
@pytest.mark.parametrize("how", ["one", "data", "tensor"])
def test_recorded_steps_where_work_waits(how):
    assert trained(how, EMULATED_LAZY=1)[0] == trained(how)[0]


@emulated_only
def test_sums_beside_the_computing_are_those_in_its_order():
    assert trained("data", HOLON_OVERLAP=0)[0] == trained("data")[0]


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["HOLON_CHECK", "EMULATED_NO_NCCL"])
def test_collectives_that_need_the_host_stay_out_of_recordings(setting):
    if not EMULATED and setting != "HOLON_CHECK":
        pytest.skip("what the emulator is told")
    bits, counts, _ = trained("data", **{setting: 1})
    assert bits == trained("data")[0]
    assert counts[-1][1] >= 1  # the rest is recorded


def faulty(kind, **extra):
    if not EMULATED and flow.cuda.device_count() < 2:
        pytest.skip("2 cuda devices are needed")
    return ranks.launch(PROGRAMS / "recorded_faults.py", 2, timeout=60, EMULATED_DEVICES=4, WORDS=kind, **extra)


def test_ranks_record_anew_together():
    done = faulty("moves")
    assert done.returncode == 0 and done.stdout.count("all steps done, 1 recorded") == 2, done.stdout + done.stderr


@emulated_only
def test_what_hangs_in_a_recording_is_aborted():
    done = faulty("hangs", EMULATED_NCCL_HANGS=8, HOLON_COMM_TIMEOUT_S=3)
    assert done.returncode != 0 and "all steps done" not in done.stdout
    assert "4 tensors [80] float32 between the cuda devices of ranks [0, 1]" in done.stdout, done.stdout
    assert "waited 3 s" in done.stdout, done.stdout


@emulated_only
def test_a_rank_that_dies_while_a_recording_is_under_way_is_named_by_the_other():
    # Without the launcher, which would stop the other.
    command = [sys.executable, str(PROGRAMS / "recorded_faults.py")]
    env = {
        "EMULATED_DEVICES": 4,
        "EMULATED_NCCL_HANGS": 8,
        "HOLON_COMM_TIMEOUT_S": 40,
        "WORDS": "dies",
        "MASTER_PORT": free_port(),
        "WORLD_SIZE": 2,
    }
    both = [
        subprocess.Popen(
            command, env=ranks.environment(RANK=r, **env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for r in range(2)
    ]
    text, errors = both[0].communicate(timeout=60)
    assert both[1].wait(10) == 7
    assert both[0].returncode != 0 and "rank 0 after" in text, text + errors
    assert "4 tensors [80] float32 between the cuda devices of ranks [0, 1]: rank 1" in text, text + errors


class Draw(nn.Graph):
    def build(self, x):
        a = nn.functional.dropout(x, 0.3)
        b = nn.functional.dropout(flow.rand_like(x), 0.5)
        c = flow.bernoulli(flow.sigmoid(flow.randn_like(x)))
        return a, b, c, flow.randperm(17, device=x.device)


def draws(device, seeds):
    graph, made = Draw(), []
    for seed in seeds:
        if seed is not None:
            flow.manual_seed(seed)
        made.append([t.cpu().numpy() for t in graph(flow.ones(3, 5, device=device))])
    return made, graph.stats()["recorded"]


def test_recorded_draws_are_those_of_the_cpu():
    seeds = [3, None, None, 4, 3, None, None]
    there, recorded = draws("cuda", seeds)
    here, _ = draws("cpu", seeds)
    assert recorded == 1
    for a, b in zip(there, here):
        for x, y in zip(a, b):
            np.testing.assert_array_equal(x, y)
    assert not np.array_equal(there[1][1], there[2][1])
    np.testing.assert_array_equal(there[0][1], there[4][1])


class Order(nn.Graph):
    def build(self, x, at):
        table = flow.zeros(50, 2, device=x.device)
        return *flow.sort(x), *flow.topk(x, 7, -1), flow.index_add(table, 0, at, x[0, :, None].expand(-1, 2))


def test_sorts_are_recorded():
    """Of rows that are too long for a block."""
    graph, made = {device: Order() for device in ("cpu", "cuda")}, []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        x, at = flow.tensor(rng.integers(0, 99, (3, 5000)).astype("float32")), flow.tensor(rng.integers(0, 50, 5000))
        made.append([[t.cpu().numpy() for t in graph[d](x.to(d), at.to(d))] for d in graph])
    assert graph["cuda"].stats()["recorded"] == 1
    for here, there in made:
        for a, b in zip(here, there):
            np.testing.assert_array_equal(a, b)


@emulated_only
def test_the_emulator_records_by_cudas_rules():
    check = ctypes.CDLL(os.environ["HOLON_CUDA_LIBRARY"]).emulated_capture_check
    check.restype = ctypes.c_char_p
    assert check() == b""
