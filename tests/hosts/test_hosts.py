"""Worlds of several hosts, between network namespaces: by the launcher as the specification shows it, and by hand."""

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from harness.ranks import ROOT, environment

sys.path.insert(0, str(Path(__file__).parent))
from namespaces import Hosts, missing  # noqa: E402

REASON = missing()
pytestmark = [pytest.mark.skipif(REASON is not None, reason=str(REASON)), pytest.mark.slow]

PORT = 7788
BUILD = Path(os.environ.get("HOLON_BUILD_DIR", ROOT / "build/dev"))
RANK_PROGRAM = BUILD / "bin/comm_rank_program"
LAUNCHER = [sys.executable, "-m", "holon.distributed.launch"]


def launch(hosts, per_host, program, *arguments, launcher=LAUNCHER, **extra):
    """The launcher's process on each host, as the specification starts them."""
    return [
        hosts.popen(
            i,
            [
                *launcher,
                f"--nnodes={hosts.n}",
                f"--node_rank={i}",
                f"--nproc_per_node={per_host}",
                f"--master_addr={hosts.address(0)}",
                f"--master_port={PORT}",
                program,
                *arguments,
            ],
            env=environment(**extra),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i in range(hosts.n)
    ]


def by_hand(hosts, per_host, command, **extra):
    """A process for each rank, without a launcher."""
    size = hosts.n * per_host
    return [
        hosts.popen(
            r // per_host,
            command,
            env=environment(
                RANK=r,
                WORLD_SIZE=size,
                LOCAL_RANK=r % per_host,
                LOCAL_WORLD_SIZE=per_host,
                MASTER_ADDR=hosts.address(0),
                MASTER_PORT=PORT,
                **extra,
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for r in range(size)
    ]


def finish(processes, timeout=120):
    """Exit statuses and outputs; a process that does not end in time is a failure."""
    until, outputs = time.monotonic() + timeout, []
    try:
        for p in processes:
            outputs.append(p.communicate(timeout=max(0.1, until - time.monotonic()))[0])
    finally:
        for p in processes:
            p.kill()
    return [p.returncode for p in processes], outputs


@pytest.mark.parametrize("count, per_host", [(2, 2), (3, 1)])
def test_every_collective(count, per_host):
    with Hosts(count) as hosts:
        codes, outputs = finish(
            launch(hosts, per_host, RANK_PROGRAM, "collectives", launcher=[BUILD / "bin/holon-launch"])
        )
    assert codes == [0] * count, outputs
    said = sorted(re.findall(r"rank (\d+) ok", "".join(outputs)))
    assert said == [str(r) for r in range(count * per_host)]


MATMUL = """
import holon as flow
p = flow.placement("cpu", ranks=[[0, 1], [2, 3]])
x = flow.randn(6, 5, placement=p, sbp=[flow.sbp.split(0), flow.sbp.broadcast])
w = flow.randn(5, 8, placement=p, sbp=[flow.sbp.broadcast, flow.sbp.split(1)], requires_grad=True)
y = flow.matmul(x, w)
y.sum().backward()
sums = f"{float(y.sum().item()):.4f} {float(w.grad.abs().sum().item()):.4f}"
print(f"rank {flow.env.get_rank()} {y.to_local().shape} {sums}\\n", end="", flush=True)
"""


def test_the_specifications_launch(tmp_path):
    program = tmp_path / "test.py"
    program.write_text(MATMUL)
    with Hosts(2) as hosts:
        codes, outputs = finish(launch(hosts, 2, program))
    assert codes == [0, 0], outputs
    lines = sorted(line for line in "".join(outputs).splitlines() if line.startswith("rank"))
    assert [line.split()[1] for line in lines] == ["0", "1", "2", "3"]
    assert len({tuple(line.split()[-2:]) for line in lines}) == 1, lines


GPT = [
    "--layers",
    "2",
    "--width",
    "32",
    "--heads",
    "4",
    "--length",
    "32",
    "--batch",
    "8",
    "--steps",
    "12",
    "--sample",
    "1",
]


def test_a_gpt_trains_as_on_one_host(tmp_path):
    train, text = ROOT / "examples/gpt/train.py", tmp_path / "text.py"
    text.write_text("def f(x):\n    return x + 1\n\nclass A:\n    pass\n\n" * 4000)
    arguments = [*GPT, "--data", str(text)]
    done = subprocess.run(
        [sys.executable, str(train), *arguments, "--curve", str(tmp_path / "one")],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    with Hosts(2) as hosts:
        codes, outputs = finish(
            launch(hosts, 2, train, *arguments, "--dp", "2", "--tp", "2", "--curve", str(tmp_path / "two"))
        )
    assert codes == [0, 0], outputs
    one, two = (np.loadtxt(tmp_path / name) for name in ("one", "two"))
    assert len(one) == 12
    np.testing.assert_allclose(two, one, rtol=1e-3)


def test_a_slow_cable():
    """20 ms each way and 20 MB/s: everything works, and takes its time."""
    start = time.monotonic()
    with Hosts(2, slow=(0.02, 20e6)) as hosts:
        codes, outputs = finish(launch(hosts, 1, RANK_PROGRAM, "barrier", launcher=[BUILD / "bin/holon-launch"]))
        assert codes == [0, 0], outputs
        assert time.monotonic() - start > 0.2
        codes, outputs = finish(launch(hosts, 2, RANK_PROGRAM, "brief", launcher=[BUILD / "bin/holon-launch"]))
    assert codes == [0, 0], outputs


def wait_until_ready(processes):
    for p in processes:
        for line in p.stdout:
            if "is ready" in line:
                break


LIMIT = 4


def test_a_cable_that_is_cut():
    """Every rank, on both hosts, raises within the time-out and 2 s, and says what it waited for and from whom."""
    with Hosts(2) as hosts:
        ranks = by_hand(hosts, 2, [RANK_PROGRAM, "work"], HOLON_COMM_TIMEOUT_S=LIMIT)
        wait_until_ready(ranks)
        time.sleep(0.5)
        hosts.cut(1)
        start = time.monotonic()
        codes, outputs = finish(ranks)
        took = time.monotonic() - start
        assert hosts.processes() == []
    assert codes == [1] * 4, outputs
    assert took < LIMIT + 40, outputs  # on a busy machine
    for rank, text in enumerate(outputs):
        assert "all_reduce" in text and f"{LIMIT} s" in text, text
        others = "[2, 3]" if rank < 2 else "[0, 1]"
        assert others in text or "has failed" in text or "did not arrive" in text, text
    assert any("from other hosts" in text for text in outputs[:2]) and any(
        "from other hosts" in text for text in outputs[2:]
    )


@pytest.mark.parametrize("victim", [0, 3])
def test_a_rank_that_is_killed(victim):
    """The others are told at once, on both hosts, who it was."""
    with Hosts(2) as hosts:
        ranks = by_hand(hosts, 2, [RANK_PROGRAM, "work"], HOLON_COMM_TIMEOUT_S=120)
        wait_until_ready(ranks)
        time.sleep(0.3)
        start = time.monotonic()
        os.kill(ranks[victim].pid, signal.SIGKILL)
        codes, outputs = finish(ranks)
        took = time.monotonic() - start
        assert hosts.processes() == []
    assert took < 40, outputs
    assert codes[victim] == -signal.SIGKILL
    for rank, text in enumerate(outputs):
        if rank != victim:
            assert codes[rank] == 1 and "all_reduce" in text and f"rank {victim}" in text, text


@pytest.mark.parametrize("how", ["cut", "cut and killed", "one way", "not the store's"])
@pytest.mark.parametrize("mode", ["work", "wait_for_busy"])
def test_a_host_that_is_cut_off_is_noticed_by_its_silence(how, mode):
    """Long before the time-out; also where what is sent one way still arrives,
    and by those who wait for another rank."""
    with Hosts(3) as hosts:
        ranks = by_hand(hosts, 1, [RANK_PROGRAM, mode], HOLON_COMM_TIMEOUT_S=300, HOLON_HEARTBEAT_S=3)
        wait_until_ready(ranks)
        time.sleep(0.3)
        if how == "one way":
            hosts.lose(2, 0)
            hosts.lose(2, 1)
        elif how == "not the store's":
            hosts.lose(1, 2)
            hosts.lose(2, 1)
        else:
            hosts.cut(2)
        if how == "cut and killed":
            ranks[2].kill()
        codes, outputs = finish(ranks[:1] if mode == "wait_for_busy" else ranks[:2], 60)
        for p in ranks:
            p.kill()
            p.wait()
    assert set(codes) == {1}, outputs
    for text in outputs:
        assert "rank 2" in text or "rank 1" in text or "rank 0 has failed: the store" in text, text


@pytest.mark.one_network
def test_a_host_that_does_not_come():
    with Hosts(2) as hosts:
        ranks = by_hand(hosts, 2, [RANK_PROGRAM, "barrier"], HOLON_RENDEZVOUS_TIMEOUT_S=2)
        for p in ranks[2:]:
            p.kill()
        codes, outputs = finish(ranks)
    assert codes[:2] == [1, 1]
    for text in outputs[:2]:
        assert "missing: 2, 3" in text, text


def test_other_calls_on_another_host(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("""
import holon as flow
p = flow.placement("cpu", ranks=[0, 1, 2, 3])
x = flow.ones(4, 4, placement=p, sbp=flow.sbp.partial_sum)
if flow.env.get_rank() < 2:
    x.to_global(p, flow.sbp.broadcast)
else:
    x.to_global(p, flow.sbp.split(0))
""")
    with Hosts(2) as hosts:
        codes, outputs = finish(by_hand(hosts, 2, [sys.executable, program], HOLON_COMM_TIMEOUT_S=20))
    assert codes == [1] * 4, outputs
    for text in outputs:
        assert "all_reduce P -> B" in text and "reduce_scatter P -> S(0)" in text, text
        assert "program.py:6" in text and "program.py:8" in text, text


def test_one_trace_of_all_hosts(tmp_path):
    """Every rank is in it, and all begin a common boxing before any of them has ended it, as far as clocks tell."""
    program = tmp_path / "program.py"
    program.write_text("""
import holon as flow
p = flow.placement("cpu", ranks=[0, 1, 2, 3])
for _ in range(20):
    flow.ones(64, 64, placement=p, sbp=flow.sbp.split(0)).to_global(p, flow.sbp.broadcast)
""")
    with Hosts(2) as hosts:
        codes, outputs = finish(launch(hosts, 2, program, HOLON_TRACE=tmp_path / "trace.json"))
    assert codes == [0, 0], outputs
    events = json.loads((tmp_path / "trace.json").read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    steps = {}
    for e in events:
        if e.get("ph") == "X" and "all_gather" in e["name"]:
            steps.setdefault(e["pid"], []).append((e["ts"], e["ts"] + e["dur"]))
    assert sorted(steps) == [0, 1, 2, 3] and all(len(s) == 20 for s in steps.values())
    # Clocks are off by half of the quickest round trip at most. A gather takes one, too: some may be quicker than those
    # that the clocks were set by, where other programs run, but not half of all.
    off = statistics.median(end - start for spans in steps.values() for start, end in spans)
    for together in zip(*(sorted(steps[rank]) for rank in range(4))):
        assert max(start for start, _ in together) < min(end for _, end in together) + off
