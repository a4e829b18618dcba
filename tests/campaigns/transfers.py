"""Two jobs on random numbers of ranks in random layouts, of which one exports states to the other again and again,
until a rank of either is killed or stopped, at any moment. play(seed) returns what was bad: a rank that neither goes on
nor raises, or whose module has a state that is neither the last nor the next one.

As a program it is a rank of either: transfers.py exports|receives ADDRESS SEED."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

TIMEOUT_S, SLOW_S = 2, 60
TIMES = 100


def model(flow, nn, rng, n):
    made = nn.Sequential(nn.Linear(700, 500), nn.Linear(500, 30), nn.Embedding(10, 1))
    if n == 1 and rng.random() < 0.5:
        return made
    everywhere = flow.placement.all("cpu")
    made.to_global(everywhere, flow.sbp.broadcast)
    for layer in made:
        if rng.random() < 0.7:
            layer.weight = nn.Parameter(layer.weight.to_global(everywhere, flow.sbp.split(rng.randrange(2))))
    return made


def values(module):
    """The values that this rank's parts have."""
    parts = [p.to_local() if p.is_global else p for p in module.parameters()]
    return {v for p in parts if p.numel() for v in (p.min().item(), p.max().item())}


def rank_of(side, address, seed):
    import holon as flow
    from holon import nn

    module = model(flow, nn, random.Random(f"{side} {seed}"), flow.env.get_world_size())
    print("ready", flush=True)
    state = None
    try:
        for i in range(TIMES):
            timeout = 5 if i else SLOW_S
            if side == "exports":
                with flow.no_grad():
                    for p in module.parameters():
                        p.fill_(i)
                flow.export(module, to=address, timeout=timeout)
            else:
                flow.receive(address, into=module, timeout=timeout)
                found, state = values(module), i
                if found not in ({i}, set()):
                    return print(f"bad: {found} in state {i}")
    except RuntimeError as e:
        found = values(module)
        if side == "receives" and state is not None and found not in ({state}, set()):
            return print(f"bad: {found} after state {state} and an error")
        return print(f"raised: {str(e)[:300]}")
    return print("done")


def play(seed):
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from harness.jobs import Job
    from harness.ports import free_port

    rng = random.Random(seed)
    sides = ("exports", "receives")
    ranks = {side: rng.randint(1, 3) for side in sides}
    side, number = rng.choice(sides), rng.choice([signal.SIGKILL, signal.SIGSTOP])
    which = rng.randrange(ranks[side])
    what = f"{ranks['exports']} -> {ranks['receives']} ranks, {number.name} to rank {which} of the one that {side}"
    address = f"127.0.0.1:{free_port()}"
    begin = {s: (Path(__file__), ranks[s], s, address, seed) for s in sides}
    extra = {"HOLON_COMM_TIMEOUT_S": TIMEOUT_S}
    with Job(*begin["exports"], **extra) as exports, Job(*begin["receives"], **extra) as receives:
        jobs = {"exports": exports, "receives": receives}
        for s in sides:
            for rank in range(ranks[s]):
                if jobs[s].line(rank) != "ready":
                    return f"{what}: a rank did not begin", what
        time.sleep(rng.uniform(0, 0.5))
        jobs[side].signal(which, number)
        for s in sides:
            for rank in range(ranks[s]):
                if (s, rank) == (side, which):
                    continue
                try:
                    (said,) = jobs[s].wait([rank], timeout=TIMEOUT_S + 2 * SLOW_S)
                except subprocess.TimeoutExpired:
                    return f"seed {seed}, {what}: rank {rank} that {s} waits", what
                except AssertionError as e:
                    return f"seed {seed}, {what}: rank {rank} that {s}: {e}", what
                if not said.startswith(("raised", "done")):
                    return f"seed {seed}, {what}: rank {rank} that {s} says {said}", what
    return "", what


if __name__ == "__main__":
    rank_of(*sys.argv[1:])
