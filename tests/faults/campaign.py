"""Runs many random worlds, lets something go wrong in each, and says for each what every rank did.
Prints a JSON line per world.

Of the kind "kill" a rank is killed from outside, at any moment, before the ranks are connected or when all is done;
what the other kinds do comes at a step of the program, which the others do not come through without that rank.

Ranks are forks of a process that has imported holon, so that a world takes milliseconds to start. By hand, for longer:
    python tests/faults/campaign.py --kind kill --count 10000 --jobs 4
"""

import argparse
import ctypes
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from harness.ports import free_port, is_free  # noqa: E402

MARK = "HOLON_FAULTS_MARK"


def start_rank(rank, world, port, output, variables, body):
    """Forks a rank; its stderr goes to the file."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 0
    try:
        os.dup2(output.fileno(), 2)
        os.environ.update(
            {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world),
                "LOCAL_WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                **variables,
            }
        )
        body()
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 1 if e.code else 0
    except BaseException:
        code = 1
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        ctypes.CDLL(None).exit(code)


def one_world(kind, seed, timeout, steps, ranks=0):
    """What came of a world: its plan, and for each rank how it ended, when, and what it said.
    Kinds of "graph ..." run graphs.py."""
    import graphs
    import programs

    named, program = kind, graphs if kind.startswith("graph ") else programs
    kind = kind.removeprefix("graph ")
    rng = random.Random(seed * 7919 + 13)
    world = ranks or rng.randint(2, 4)
    culprit = rng.randrange(world) if kind != "none" else None
    inside = kind not in ("kill", "none")
    at = rng.randrange(max(1, min(steps, 30))) if inside else None
    delay = rng.uniform(0, 0.25) if kind == "kill" else 0
    port = free_port()
    variables = {"HOLON_COMM_TIMEOUT_S": str(timeout), "HOLON_RENDEZVOUS_TIMEOUT_S": str(timeout)}
    files = [tempfile.TemporaryFile("w+") for _ in range(world)]
    start = time.monotonic()
    pids = [
        start_rank(
            r,
            world,
            port,
            files[r],
            variables,
            lambda: program.run(seed, world, steps, kind if inside else None, culprit, at),
        )
        for r in range(world)
    ]
    running, ended, began = dict(zip(pids, range(world))), {}, None
    give_up = start + 60 + timeout * 4 if kind != "none" else start + 280
    while running:
        now = time.monotonic()
        if kind == "kill" and began is None and now - start >= delay:
            began = now
            if pids[culprit] in running:
                os.kill(pids[culprit], signal.SIGKILL)
        for pid in list(running):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                ended[running.pop(pid)] = (os.waitstatus_to_exitcode(status), now)
        others = [r for r in running.values() if r != culprit]
        # A rank that stands still is let go once the others have spoken, and must then fail too.
        if kind == "stop" and not others and running:
            os.kill(pids[culprit], signal.SIGCONT)
        if kind in ("sleep", "spin", "keeps the lock", "raise elsewhere") and not others and running:
            os.kill(pids[culprit], signal.SIGKILL)
        if now > give_up:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
    result = {
        "kind": named,
        "seed": seed,
        "world": world,
        "culprit": culprit,
        "at": at,
        "delay": round(delay, 3),
        "ranks": [],
        "port_free": is_free(port),
    }
    texts = []
    for file in files:
        file.seek(0)
        texts.append(file.read())
        file.close()
    # The clock is the same for all processes.
    if inside and (said := re.search(r"^fault at ([\d.]+)$", texts[culprit], re.M)):
        began = float(said[1])
    result["began"] = began is not None
    for r, text in enumerate(texts):
        lines = [x for x in text.splitlines() if x and not x.startswith((" ", "Traceback", "During", "The above"))]
        # Seconds from the fault, where its moment is known, else from the start of the program.
        result["ranks"].append(
            {
                "code": ended[r][0],
                "seconds": round(ended[r][1] - (began or start), 3),
                "says": lines[-1] if lines else "",
                "stderr": text[-2000:],
            }
        )
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", default="kill")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=3)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import graphs  # noqa: F401  (holon, once for all forks)

    kinds, jobs = args.kind.split(","), []
    work = [(k, s) for s in range(args.first, args.first + args.count) for k in kinds]
    for j in range(args.jobs):
        pid = os.fork()
        if pid:
            jobs.append(pid)
            continue
        for kind, seed in work[j :: args.jobs]:
            result = one_world(kind, seed, args.timeout, args.steps, args.ranks)
            os.write(1, (json.dumps(result) + "\n").encode())
        os._exit(0)
    failed = [os.waitpid(pid, 0)[1] for pid in jobs]
    sys.exit(1 if any(failed) else 0)


if __name__ == "__main__":
    main()
