"""HOLON_TRACE: one valid JSON file in which every rank's ops and boxing steps are slices."""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest
from harness import ranks
from harness.ports import free_port

PROGRAM = """
import json, os, signal, sys
import holon as flow
rank = flow.env.get_rank()
p = flow.placement("cpu", ranks=[0, 1, 2])
x = flow.tensor([[float(i + j) for j in range(40)] for i in range(50)], placement=p, sbp=flow.sbp.broadcast)
for i in range(20):
    y = x.to_global(p, flow.sbp.split(0))
    z = flow.add(y, y)
    z = z.to_global(p, flow.sbp.split(1))
    z.to_global(p, flow.sbp.broadcast)
    if i == 12 and {fault!r} == "kill" and rank == 1:
        import time
        time.sleep(0.3)
        flow.add(y, y)  # what is older than a moment is written with the next event
        os.kill(os.getpid(), signal.SIGKILL)
w = flow.ones(40, 3, placement=p, sbp=flow.sbp.broadcast, requires_grad=True)
flow.matmul(x, w).sum().backward()
flow.optim.SGD([w], lr=0.1).step()
print(json.dumps({{"rank": rank, **flow._C.comm_stats()}}))
"""


def run(tmp_path, fault=None):
    program, trace = tmp_path / "program.py", tmp_path / "trace.json"
    program.write_text(PROGRAM.format(fault=fault))
    done = ranks.launch(program, 3, cwd=tmp_path, HOLON_TRACE="trace.json", HOLON_COMM_TIMEOUT_S=20)
    return done, json.loads(trace.read_text())["traceEvents"]


def slices(events):
    return [e for e in events if e["ph"] == "X"]


def assert_nested(events):
    """The slices of a thread lie within each other or apart."""
    threads = {}
    for e in slices(events):
        threads.setdefault((e["pid"], e["tid"]), []).append(e)
    for of_thread in threads.values():
        open_until = []
        # In whole nanoseconds: sums of fractions of microseconds are not exact.
        for e in sorted(of_thread, key=lambda e: (e["ts"], -e["dur"])):
            start, end = round(e["ts"] * 1000), round(e["ts"] * 1000) + round(e["dur"] * 1000)
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1], e
            open_until.append(end)


def test_every_rank_op_and_step(tmp_path):
    done, events = run(tmp_path)
    assert done.returncode == 0, done.stderr
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {0: "rank 0", 1: "rank 1", 2: "rank 2"}
    assert_nested(events)
    stats = {s["rank"]: s for s in map(json.loads, done.stdout.splitlines())}
    for rank in range(3):
        mine = [e for e in slices(events) if e["pid"] == rank]
        ops = Counter(e["name"] for e in mine if e["cat"] == "op")
        assert ops["add"] == 20 and ops["matmul"] == 2  # forward, and the gradient of w
        steps = [e for e in mine if e["cat"] == "boxing"]
        assert Counter(e["name"] for e in steps)["all_to_all S(0) -> S(1)"] == 20
        assert sum(e["args"]["bytes"] for e in steps) == stats[rank]["bytes_read"] > 0
        assert all(e["args"]["from"] and e["args"]["to"] for e in steps)
        assert any(e["args"]["predicted_us"] > 0 for e in steps)
        assert sum(e["cat"] == "wait" for e in mine) >= 40
        assert sum(e["name"] == "backward" for e in mine) == sum(e["name"] == "optimizer step" for e in mine) == 1
    assert sorted(os.listdir(tmp_path)) == ["program.py", "trace.json"]


def test_ranks_are_aligned(tmp_path):
    """Nobody leaves a collective before all have come to it: the n-th steps of the ranks overlap."""
    _, events = run(tmp_path)
    steps = [[e for e in slices(events) if e["pid"] == r and e["name"] == "all_to_all S(0) -> S(1)"] for r in range(3)]
    assert [len(s) for s in steps] == [20, 20, 20]
    for same in zip(*steps):
        assert max(e["ts"] for e in same) <= min(e["ts"] + e["dur"] for e in same)


def test_a_killed_rank_leaves_what_it_has_done(tmp_path):
    done, events = run(tmp_path, "kill")
    assert done.returncode == 128 + 9
    assert_nested(events)
    assert {e["pid"] for e in slices(events)} == {0, 1, 2}
    assert sum(e["name"] == "add" for e in slices(events) if e["pid"] == 1) >= 13


def test_ranks_as_threads_and_without_a_launcher(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import holon as flow\n"
        "def f(rank):\n"
        "    p = flow.placement('cpu', ranks=[0, 1])\n"
        "    for i in range(30): flow.ones(4, placement=p, sbp=flow.sbp.split(0)).to_global(p, flow.sbp.broadcast)\n"
        "flow.run_ranks(2, f)\n"
    )
    done = ranks.run(program, cwd=tmp_path, HOLON_TRACE=tmp_path / "t.json")
    assert done.returncode == 0, done.stderr
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert_nested(events)
    count = Counter((e["pid"], e["name"]) for e in slices(events))
    assert count[0, "ones"] == count[1, "ones"] == count[1, "all_gather S(0) -> B"] == 30
    assert sorted(os.listdir(tmp_path)) == ["program.py", "t.json"]


def test_started_by_hand(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import holon as flow\n"
        "p = flow.placement('cpu', ranks=[0, 1])\n"
        "flow.ones(4, placement=p, sbp=flow.sbp.split(0)).to_global(p, flow.sbp.broadcast)\n"
    )
    port = free_port()
    world = [
        subprocess.Popen(
            [sys.executable, str(program)],
            cwd=tmp_path,
            env=ranks.environment(HOLON_TRACE="t.json", RANK=r, WORLD_SIZE=2, MASTER_PORT=port),
        )
        for r in range(2)
    ]
    assert [p.wait(60) for p in world] == [0, 0]
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {e["pid"] for e in slices(events)} == {0, 1}
    assert sorted(os.listdir(tmp_path)) == ["program.py", "t.json"]


@pytest.mark.parametrize("path", ["no/such/folder/t.json", ".", "pipe"])
def test_a_path_that_cannot_be_written(tmp_path, path):
    os.mkfifo(tmp_path / "pipe")
    program = tmp_path / "program.py"
    program.write_text("import holon as flow\nprint(flow.ones(2).sum().item())\n")
    done = ranks.run(program, cwd=tmp_path, HOLON_TRACE=path)
    assert done.returncode == 0 and done.stdout.strip() == "2.0"
    assert f"cannot write the trace {path}" in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["pipe", "program.py"] and (tmp_path / "pipe").is_fifo()


GRAPH = """
import holon as flow
from holon import nn
p = flow.placement("cpu", ranks=[0, 1])
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to_global(p, flow.sbp.broadcast)

class Train(nn.Graph):
    def __init__(self):
        super().__init__()
        self.model = model
        self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.1))

    def build(self, x):
        loss = (self.model(x) ** 2).mean()
        loss.backward()
        return loss

train = Train()
x = flow.randn(8, 8, placement=p, sbp=flow.sbp.split(0))
for _ in range(3):
    train(x)
"""


def test_a_graphs_instructions_lead_to_modules_and_waits_are_apart(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(GRAPH)
    done = ranks.launch(program, 2, cwd=tmp_path, HOLON_TRACE="trace.json", HOLON_OVERLAP="1")
    assert done.returncode == 0, done.stderr
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert_nested(events)
    for rank in range(2):
        mine = [e for e in slices(events) if e["pid"] == rank]
        assert sum(e["name"] == "graph step" for e in mine) == 3
        assert Counter(e["name"] for e in mine if e["cat"] == "task") == {"forward": 3, "backward": 3}
        work = [e for e in mine if e["cat"] == "graph" and "section" in e.get("args", {})]
        assert any(e["name"].startswith("model.0.") and e["args"]["section"] == "forward" for e in work)
        assert any(e["name"].startswith("model.2.") and e["args"]["section"] == "backward" for e in work)
        assert all(e["args"]["does"] and e["args"]["stage"] == 0 and e["args"]["micro_batch"] == 0 for e in work)
        # What the second thread does lies in a lane of its own; the first one waits for it.
        sums = [e for e in mine if e["name"] == "sum in background"]
        assert sums and not {e["tid"] for e in sums} & {e["tid"] for e in work}
        assert sum(e["cat"] == "graph wait" for e in mine) == len(sums)


MANY = """
import resource
import holon as flow
x = flow.ones(3)
{limit}
for _ in range(3000):
    x = x + 1
print(x.tolist())
"""


@pytest.mark.parametrize("what", ["part", "whole", "disk"])
def test_a_trace_that_cannot_be_written_says_so(tmp_path, what):
    """And the program does what it does without."""
    program, trace = tmp_path / "program.py", tmp_path / "trace.json"
    limit = ""
    if what == "part":
        (tmp_path / "trace.json.rank0").mkdir()
        said = f"holon: cannot write the trace {trace}.rank0: Is a directory. This process stops tracing.\n"
    elif what == "whole":  # made while the program runs: one that is there before is told at once
        limit = f"import os; os.mkdir({str(trace)!r})"
        said = f"holon: cannot write the trace {trace}: Is a directory. The traces of the ranks are in {trace}.rank*.\n"
    else:  # as a full disk: no file of this process may be longer
        limit = "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))"
        said = f"holon: cannot write the trace {trace}.rank0: File too large after "
    program.write_text(MANY.format(limit=limit))
    done = ranks.run(program, cwd=tmp_path, HOLON_TRACE=trace)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[3001.0, 3001.0, 3001.0]\n"
    assert done.stderr.count("cannot write") == 1
    assert said in done.stderr
