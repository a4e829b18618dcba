"""Whatever goes wrong on one rank, the others raise in time and say which rank, in which call and where.

Worlds are random (tests/faults/programs.py); seeds are in the names and messages.
Longer runs: tests/faults/campaign.py.
"""

import json
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from harness.ranks import environment

CAMPAIGN = Path(__file__).parent / "campaign.py"
SLOW = 40  # seconds that a busy machine may take beyond a time-out; who hangs is killed after 60
PLACE = r"(programs|graphs)\.py:\d+"
# Before the ranks are connected there is no call yet; they say who is missing.
RENDEZVOUS = (
    r"did not form|is not a store of Holon|while the world was forming|no store answers"
    r"|closed the connection|has joined the others"
)


def processes_with(mark):
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            pass
    return found


def campaign(kind, count, timeout=1, steps=40, first=0, jobs=4, **extra):
    mark = f"mark-{uuid.uuid4().hex}"
    before = set(os.listdir("/dev/shm"))
    command = [
        sys.executable,
        str(CAMPAIGN),
        "--kind",
        kind,
        "--count",
        count,
        "--timeout",
        timeout,
        "--steps",
        steps,
        "--first",
        first,
        "--jobs",
        jobs,
    ]
    done = subprocess.run(
        [str(c) for c in command],
        env=environment(HOLON_FAULTS_MARK=mark, OMP_NUM_THREADS=1, **extra),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    worlds = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(worlds) == count * len(kind.split(","))
    assert not processes_with(mark), "ranks are left behind"
    assert not {x for x in set(os.listdir("/dev/shm")) - before if "holon" in x}, "files are left in /dev/shm"
    for world in worlds:
        assert world["port_free"], f"{world['kind']}, seed {world['seed']}: the port is still in use"
    return worlds


def name_of(world, rank):
    return (
        f"{world['kind']}, seed {world['seed']}, {world['world']} ranks, culprit {world['culprit']}; rank {rank} says"
    )


def check(world, timeout, says, culprit_too=False):
    """Every rank but the culprit has failed in time, and names it, its call and a line of the program."""
    culprit = world["culprit"]
    for rank, r in enumerate(world["ranks"]):
        if rank == culprit and not culprit_too:
            continue
        what = f"{name_of(world, rank)}: {r['stderr']}"
        assert r["code"] == 1, what
        assert r["seconds"] < timeout + SLOW, f"after {r['seconds']} s, {what}"
        if re.search(RENDEZVOUS, r["says"]):
            assert re.search(rf"missing: [\d, ]*\b{culprit}\b|\brank {culprit}\b|Rank 0", r["says"]), what
            continue
        assert re.search(PLACE, r["says"]) and re.search(r"Error: \w+.*: .*call \d+", r["says"]), what
        if rank == culprit:  # it misses the others as they miss it
            continue
        assert re.search(rf"\branks?( \d+,)* {culprit}\b", r["says"]), what
        assert re.search(says.replace("CULPRIT", str(culprit)), r["says"]), what


def test_killed_at_any_moment():
    timeout, count = 2, 200
    hit = 0
    for world in campaign("kill", count, timeout, steps=20000):
        victim = world["ranks"][world["culprit"]]
        if victim["code"] == 0:  # it was done before
            assert all(r["code"] == 0 for r in world["ranks"]), world
            continue
        assert victim["code"] == -9, name_of(world, world["culprit"]) + victim["stderr"]
        hit += 1
        if any(r["code"] == 0 for r in world["ranks"]):  # killed in its last moment, and nobody missed it
            others = world["ranks"][: world["culprit"]] + world["ranks"][world["culprit"] + 1 :]
            assert all(r["code"] == 0 and r["says"] == "" for r in others), world
            continue
        check(world, timeout, "rank CULPRIT was killed or has crashed")
    assert hit > count * 0.9, f"only {hit} of {count} were still running"


@pytest.mark.parametrize(
    "fault, says",
    [
        ("extra", "disagree.*rank CULPRIT called all_to_all|rank CULPRIT"),
        ("skip", "disagree|has exited without|did not arrive|has failed"),
        ("order", "disagree on what to call.*rank CULPRIT called all_to_all.* at .*programs.py"),
        ("shape", "disagree on the call's arguments.* at .*programs.py:.* at .*programs.py"),
        ("dtype", "disagree on dtype.*float64"),
    ],
)
def test_other_calls(fault, says):
    for world in campaign(fault, 8):
        check(world, 1, says, culprit_too=True)


@pytest.mark.parametrize(
    "fault, says",
    [
        ("sleep", r"did not arrive.*Rank CULPRIT (sleeps|runs) at .*programs.py:\d+ in misbehave"),
        ("spin", r"did not arrive.*Rank CULPRIT (sleeps|runs) at .*programs.py:\d+ in misbehave"),
        (
            "keeps the lock",
            r"did not arrive.*Rank CULPRIT (sleeps|runs) at .*/re/__init__.py:\d+ in match < "
            r".*programs.py:\d+ in misbehave",
        ),
        ("raise elsewhere", "did not arrive.*Another thread of it has failed: KeyError: 'milk'"),
        ("exit 0", "rank CULPRIT has exited without joining this call"),
        ("exit 3", "rank CULPRIT has failed: it has exited with status 3"),
        ("_exit", "rank CULPRIT was killed or has crashed"),
        ("kills itself", "rank CULPRIT was killed or has crashed"),
        ("raise", r"rank CULPRIT has failed: ValueError: the milk is sour \(at .*programs.py:\d+\)"),
    ],
)
def test_ranks_that_do_not_come(fault, says):
    for world in campaign(fault, 5, first=100):
        check(world, 1, says)


def test_a_stopped_rank_is_said_to_be_stopped_and_fails_when_it_goes_on():
    for world in campaign("stop", 10):
        check(world, 1, r"did not arrive.*Rank CULPRIT is stopped.*kill -CONT \d+")
        assert world["ranks"][world["culprit"]]["code"] == 1, name_of(world, world["culprit"]) + str(world)


@pytest.mark.parametrize("timeout, load, steps", [(30, 0, 1500), (30, 3, 1500)])
def test_no_false_alarm(timeout, load, steps):
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(load)]
    try:
        for world in campaign("none", 3, timeout, steps, first=1000 + load, jobs=2):
            for rank, r in enumerate(world["ranks"]):
                assert r["code"] == 0 and r["says"] == "", name_of(world, rank) + r["stderr"]
    finally:
        for b in burners:
            b.kill()
            b.wait()


def check_graph(world, timeout, says, culprit_too=False):
    """As check(), of a graph: transfers of a pipeline have no group, and a rank may hear of it from one in between."""
    culprit = world["culprit"]
    for rank, r in enumerate(world["ranks"]):
        if rank == culprit and not culprit_too:
            continue
        what = f"{name_of(world, rank)}: {r['stderr']}"
        assert r["code"] == 1, what
        assert r["seconds"] < timeout + SLOW, f"after {r['seconds']} s, {what}"
        if re.search(RENDEZVOUS, r["says"]):
            continue
        assert re.search(PLACE, r["says"]) and re.search(r"Error: \w+.*: .*(call|receive) \d+", r["says"]), what
    said = [r["says"] for rank, r in enumerate(world["ranks"]) if rank != culprit or culprit_too]
    if not all(re.search(RENDEZVOUS, s) for s in said):
        says = says.replace("CULPRIT", str(culprit))
        assert any(re.search(says, s) for s in said), f"{name_of(world, '*')}: {said}"


@pytest.mark.parametrize(
    "fault, says",
    [
        ("kill", "rank CULPRIT was killed or has crashed"),
        ("stop", r"Rank CULPRIT is stopped.*kill -CONT \d+"),
        ("raise", r"rank CULPRIT has failed: ValueError: the milk is sour \(at .*:\d+\)"),
        (
            "build",
            r"compilation of a graph: rank CULPRIT has failed: ValueError: the milk is sour.*while Train was captured",
        ),
        ("sleep", r"Rank CULPRIT (sleeps|runs) at .*programs.py:\d+ in misbehave"),
    ],
)
def test_graphs_of_which_a_rank_does_not_come(fault, says):
    for world in campaign(f"graph {fault}", 6, steps=20000 if fault == "kill" else 40):
        assert world["ranks"][world["culprit"]]["code"], world
        check_graph(world, 1, says)


@pytest.mark.parametrize(
    "fault, says",
    [
        (
            "skip",
            r"disagree on what to call"
            r"|did not (send|arrive|receive).*(Rank CULPRIT waits in another group|for rank CULPRIT\b)",
        ),
        ("other graph", "disagree on the call's arguments"),
    ],
)
def test_another_graph_or_none(fault, says):
    for world in campaign(f"graph {fault}", 6):
        check_graph(world, 1, says, culprit_too=True)


def test_graphs_without_a_fault():
    for world in campaign("graph none", 4, timeout=30):
        for rank, r in enumerate(world["ranks"]):
            assert r["code"] == 0 and r["says"] == "", name_of(world, rank) + r["stderr"]
