"""Losses: ranks of two and three hosts are killed, stopped and cut off at random moments. Every survivor raises in time
and says which rank it misses. Hosts are network namespaces where they can be made, else names of one machine
(HOLON_HOST)."""

import contextlib
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness.ports import free_port
from harness.ranks import ROOT, environment

sys.path.insert(0, str(ROOT / "tests/hosts"))
from namespaces import Hosts, missing  # noqa: E402

BUILD = Path(os.environ.get("HOLON_BUILD_DIR", ROOT / "build/dev"))
RANK_PROGRAM = BUILD / "bin/comm_rank_program"
ROUNDS = 400
KILLS = 300
TIMEOUT, HEARTBEAT, LONG = 6, 2, 120
# Whoever is lost before it is connected to the others is missing there; with its host the store may be lost, too.
BEFORE = r"missing: |no store answers|the store at|did not form|cannot be reached|not a store of Holon"


class OneMachine:
    """Hosts without cables of their own."""

    def popen(self, i, command, env, **options):
        return subprocess.Popen(command, env={**env, "HOLON_HOST": f"host{i}", "HOLON_NET_INTERFACE": "lo"}, **options)

    def address(self, i):
        return "127.0.0.1"


@pytest.fixture(scope="module")
def three_hosts():
    if missing():
        yield OneMachine(), ["kill", "kill two", "stop", "workers"]
        return
    with Hosts(3) as hosts:
        yield hosts, ["kill", "kill two", "stop", "workers", "cut", "one way", "between two"]


def start(hosts, rank, per_host, size, port, mode, timeout, rendezvous, heartbeat):
    return hosts.popen(
        rank // per_host,
        [str(RANK_PROGRAM), mode],
        env=environment(
            RANK=rank,
            WORLD_SIZE=size,
            LOCAL_RANK=rank % per_host,
            LOCAL_WORLD_SIZE=per_host,
            MASTER_ADDR=hosts.address(0),
            MASTER_PORT=port,
            HOLON_COMM_TIMEOUT_S=timeout,
            HOLON_RENDEZVOUS_TIMEOUT_S=rendezvous,
            HOLON_HEARTBEAT_S=heartbeat,
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # with its workers
    )


def are_ready(ranks):
    for p in ranks:
        while "is ready" not in (line := p.stdout.readline()):
            if not line:
                return False
    return True


def end(ranks):
    for p in ranks:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(p.pid, signal.SIGKILL)
        p.wait()
        p.stdout.close()


def one_round(hosts, faults, seed):
    """What was done, and what was wrong: "" if nothing was."""
    rng = random.Random(seed)
    count, per_host, fault = rng.choice([2, 3]), rng.choice([1, 2]), rng.choice(faults)
    size, port = count * per_host, free_port()
    mode = "work_with_workers" if fault == "workers" else "work"
    victims = {rng.randrange(size)}
    if fault == "kill two":
        victims.add((min(victims) + rng.randrange(1, size)) % size)
    early = rng.random() < 0.5
    delay = rng.uniform(0, 0.3)
    plan = f"{fault} of {sorted(victims)}, {count} hosts of {per_host}, {'early' if early else 'late'} {delay:.3f} s"
    rendezvous = TIMEOUT if early else 60
    ranks = [start(hosts, r, per_host, size, port, mode, TIMEOUT, rendezvous, HEARTBEAT) for r in range(size)]
    mends = []
    try:
        if not early:
            if not are_ready(ranks):
                return plan, "a rank has ended before it was ready"
        time.sleep(delay)
        host = min(victims) // per_host
        if fault in ("kill", "kill two", "workers"):
            for v in victims:
                ranks[v].kill()
        elif fault == "stop":
            for v in victims:
                ranks[v].send_signal(signal.SIGSTOP)
        elif fault == "cut":
            hosts.cut(host)
            mends.append(lambda: hosts.mend(host))
        else:
            other = (host + 1) % count
            for a, b in [(host, other)] if fault == "one way" else [(host, other), (other, host)]:
                hosts.lose(a, b)
                mends.append(lambda a=a, b=b: hosts.find(a, b))
        began, outputs = time.monotonic(), {}
        survivors = [r for r in range(size) if r not in victims or fault in ("cut", "one way", "between two")]
        for r in survivors:
            try:
                outputs[r] = ranks[r].communicate(timeout=max(1, began + 60 - time.monotonic()))[0]
            except subprocess.TimeoutExpired:
                return plan, f"rank {r} waits for ever"
        took = time.monotonic() - began
        if took > 2 * TIMEOUT + 5:
            return plan, f"told after {took:.1f} s"
        for r in survivors:
            if ranks[r].returncode != 1:
                return plan, f"rank {r} ended with {ranks[r].returncode}: {outputs[r]}"
            # Who is cut off, or waits for a rank that waits for one that is stopped, is missed as well.
            if fault in ("cut", "one way", "between two", "stop"):
                named = re.search(rf"{BEFORE}|\branks? \d|\[\d", outputs[r])
            else:
                named = any(re.search(rf"\branks?( \d+,)* {v}\b", outputs[r]) for v in victims)
                named = named or (early and re.search(BEFORE, outputs[r]))
            if not named:
                return plan, f"rank {r} names nobody: {outputs[r]}"
    finally:
        end(ranks)
        for mend in mends:
            mend()
    return plan, ""


def test_losses(three_hosts, rounds):
    hosts, faults = three_hosts
    bad = []
    for seed in rounds.seeds(ROUNDS):
        plan, trouble = one_round(hosts, faults, seed)
        rounds.end(seed, plan, trouble)
        bad += [f"seed {seed}: {plan}: {trouble}"] if trouble else []
    assert not bad, f"{len(bad)} of {rounds.ended}: " + "\n".join(bad)


def seconds_until_told(hosts, rng):
    """After how long the last survivor of four ranks on two hosts has ended, and what was wrong."""
    victim, port, delay = rng.randrange(4), free_port(), rng.uniform(0, 0.3)
    ranks = [start(hosts, r, 2, 4, port, "work", LONG, LONG, LONG) for r in range(4)]
    try:
        if not are_ready(ranks):
            return 0, "a rank has ended before it was ready"
        time.sleep(delay)
        ranks[victim].kill()
        began = time.monotonic()
        for r in set(range(4)) - {victim}:
            try:
                output = ranks[r].communicate(timeout=max(1, began + LONG / 2 - time.monotonic()))[0]
            except subprocess.TimeoutExpired:
                return LONG / 2, f"rank {r} has not heard of rank {victim}"
            if ranks[r].returncode != 1 or not re.search(rf"\branks?( \d+,)* {victim}\b", output):
                return 0, f"rank {r} ended with {ranks[r].returncode}, rank {victim} was killed: {output}"
        return time.monotonic() - began, ""
    finally:
        end(ranks)


def test_kills_are_told_long_before_a_time_out(three_hosts, rounds):
    """While other programs take all cores."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count())]
    times, bad = [], []
    try:
        for seed in rounds.seeds(KILLS):
            took, trouble = seconds_until_told(three_hosts[0], random.Random(seed))
            rounds.end(seed, f"told after {took:.2f} s", trouble)
            times.append(took)
            bad += [f"seed {seed}: {trouble}"] if trouble else []
    finally:
        for p in others:
            p.kill()
            p.wait()
    times.sort()
    rounds.say(f"told after {times[len(times) // 2]:.2f} s, the slowest after {times[-1]:.2f} s")
    assert not bad, f"{len(bad)} of {rounds.ended}: " + "\n".join(bad)


def test_256_ranks_of_an_ordinary_user():
    """With the usual 1,024 descriptors."""
    as_nobody = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}

    def limits():
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))

    done = subprocess.run(
        [BUILD / "bin/holon-launch", "-n", "256", RANK_PROGRAM, "barrier"],
        env=environment(OMP_NUM_THREADS=1, HOLON_ARENA_GB=1, HOLON_RENDEZVOUS_TIMEOUT_S=500, HOLON_COMM_TIMEOUT_S=500),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=580,
        preexec_fn=limits,
        **as_nobody,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert len(set(re.findall(r"rank (\d+) ok", done.stdout))) == 256
