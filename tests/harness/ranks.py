"""Programs on several ranks, as a user starts them."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def environment(**extra):
    """The environment of a rank: holon of this tree, one thread per rank, nothing left of a world around us. Output is
    buffered, as an unbuffered print() writes its line in two pieces, between which another rank's may come."""
    dropped = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PYTHONUNBUFFERED")
    env = {k: v for k, v in os.environ.items() if k not in dropped}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "python"), env.get("PYTHONPATH")]))
    env.setdefault("OMP_NUM_THREADS", "1")
    return env | {k: str(v) for k, v in extra.items()}


def launch(program, ranks, timeout=120, cwd=None, arguments=(), **extra):
    """Runs a Python program by holon.distributed.launch;
    returns the finished process with stdout and stderr as text."""
    command = [
        sys.executable,
        "-m",
        "holon.distributed.launch",
        "--nproc_per_node",
        str(ranks),
        str(program),
        *map(str, arguments),
    ]
    return subprocess.run(command, env=environment(**extra), capture_output=True, text=True, timeout=timeout, cwd=cwd)


def run_example(path, ranks, *arguments):
    """Runs a program of examples/ on so many ranks; returns what it has printed."""
    done = launch(ROOT / "examples" / path, ranks, timeout=240, arguments=arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run(program, timeout=120, cwd=None, **extra):
    """Runs a Python program as it is, on one rank."""
    return subprocess.run(
        [sys.executable, str(program)],
        env=environment(**extra),
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=cwd,
    )
