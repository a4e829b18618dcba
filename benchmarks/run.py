#!/usr/bin/env python3
"""Runs the benchmarks and prints one JSON object a line: ./dev bench [--save FILE] [NAME ...]

  {"name": what was done, "value": of Holon, "unit": of it,
   "against": what it was compared with, "ratio": how it compares}

ratio is above 1 where Holon is better (faster, smaller). A benchmark is a C++ program build/dev/bench/NAME_bench or a
script benchmarks/NAME.py that prints such lines; hello, memory and size are measured here. Peers are measured in the
same run: PyTorch where $HOLON_BENCH_TORCH_PYTHON names a Python that has it, otherwise the comparison is with Python
and NumPy alone. What the figures were measured on goes to stderr; --save writes that and the lines into a file, too.
Without names all are run but first, which builds Holon from nothing, and models, which takes half an hour.
"""

import argparse
import datetime
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("HOLON_BUILD_DIR", ROOT / "build/dev"))
KEYS = ["name", "value", "unit", "against", "ratio"]
REPEATS = 5
BY_NAME_ONLY = ["first", "models"]

HELLO = """
import {module} as flow
placement = flow.placement("cpu", ranks=[0, 1])
x = flow.ones(4, 5, placement=placement, sbp=flow.sbp.split(0))
w = flow.ones(5, 8, placement=placement, sbp=flow.sbp.broadcast)
print(flow.matmul(x, w).to_local().shape)
"""
HELLO_TORCH = """
import torch
import torch.distributed as dist
from torch.distributed.tensor import DeviceMesh, Replicate, Shard, distribute_tensor
dist.init_process_group("gloo")
mesh = DeviceMesh("cpu", [0, 1])
x = distribute_tensor(torch.ones(4, 5), mesh, [Shard(0)])
w = distribute_tensor(torch.ones(5, 8), mesh, [Replicate()])
print(torch.matmul(x, w).to_local().shape)
dist.destroy_process_group()
"""
# Peak resident memory of a process in MiB, after what the program before it has done.
PEAK = "\nimport resource\nprint(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)\n"


saved = []  # lines of the file that --save names


def show(line):
    print(line, flush=True)
    saved.append(line)


def emit(name, value, unit, against=None, ratio=None):
    show(
        json.dumps(
            {
                "name": name,
                "value": round(value, 6),
                "unit": unit,
                "against": against,
                "ratio": None if ratio is None else round(ratio, 3),
            }
        )
    )


def note(text):
    print(text, file=sys.stderr, flush=True)


def environment():
    path = os.pathsep.join(filter(None, [str(ROOT / "python"), os.environ.get("PYTHONPATH")]))
    return dict(os.environ, PYTHONPATH=path, OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", "1"))


def run(command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=600, **options)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stderr}")
    return done.stdout


def torch_python():
    """The Python that has PyTorch with DTensor, or None."""
    python = os.environ.get("HOLON_BENCH_TORCH_PYTHON")
    if (
        python
        and subprocess.run([python, "-c", "import torch.distributed.tensor"], capture_output=True).returncode == 0
    ):
        return python
    return None


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def seconds(*sides):
    """Median wall seconds of each side, one warm-up and REPEATS runs, interleaved."""
    times = [[] for _ in sides]
    for i in range(REPEATS + 1):
        for side, kept in zip(sides, times):
            start = time.perf_counter()
            side()
            if i:
                kept.append(time.perf_counter() - start)
    return [statistics.median(t) for t in times]


def hello():
    """Two ranks from nothing: start, import, rendezvous, one product of S(0) x B, print, end."""
    with tempfile.TemporaryDirectory() as folder:
        program, peer = Path(folder, "hello.py"), Path(folder, "hello_torch.py")
        program.write_text(HELLO.format(module="holon"))
        peer.write_text(HELLO_TORCH)
        env, python = environment(), torch_python()

        def ours():
            run(
                [
                    sys.executable,
                    "-m",
                    "holon.distributed.launch",
                    "--nproc_per_node",
                    2,
                    "--master_port",
                    free_port(),
                    program,
                ],
                env=env,
            )

        def bare():
            run([sys.executable, "-c", "import numpy"], env=env)

        def theirs():
            run(
                [python, "-m", "torch.distributed.run", "--nproc_per_node", 2, "--master_port", free_port(), peer],
                env=env,
            )

        if python:
            a, b, c = seconds(ours, bare, theirs)
            emit("hello: 2 ranks, launch to end", a, "s", "torchrun, DTensor, the same product", c / a)
        else:
            a, b = seconds(ours, bare)
        emit("hello: 2 ranks, launch to end", a, "s", "python -c 'import numpy', once", b / a)


def memory():
    """Peak resident memory of one process after import and a small product."""
    body = "import {0} as m\nx = m.ones(({1}))\nm.matmul(x, x)\n"
    env, python = environment(), torch_python()
    ours = float(run([sys.executable, "-c", body.format("holon", "64, 64") + PEAK], env=env))
    bare = float(run([sys.executable, "-c", body.format("numpy", "64, 64") + PEAK], env=env))
    if python:
        theirs = float(run([python, "-c", body.format("torch", "64, 64") + PEAK], env=env))
        emit("memory: import and a product, peak resident", ours, "MiB", "torch", theirs / ours)
    emit("memory: import and a product, peak resident", ours, "MiB", "numpy", bare / ours)


def tree_mib(paths):
    files = {
        f.resolve()
        for p in paths
        for f in ([p] if p.is_file() else p.rglob("*"))
        if f.is_file() and "__pycache__" not in f.parts
    }
    return sum(f.stat().st_size for f in files) / 2**20


def stripped_mib(paths):
    total = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for path in paths:
            out = Path(folder, path.name)
            run(["strip", "-o", out, path])
            total += out.stat().st_size / 2**20
    return total


def size():
    """What an installation takes on disk, without debug information and without the libraries underneath."""
    binaries = [
        (BUILD / "lib/libholon.so").resolve(),
        *(ROOT / "python/holon").glob("_C*.so"),
        *BUILD.glob("bin/holon-launch"),
    ]
    ours = stripped_mib(binaries) + tree_mib([p for p in (ROOT / "python/holon").rglob("*.py")])
    python = torch_python()
    if python:
        where = run([python, "-c", "import torch; print(torch.__path__[0])"]).strip()
        emit("size: installed", ours, "MiB", "torch", tree_mib([Path(where)]) / ours)
    site = Path(sysconfig.get_path("purelib"))
    emit("size: installed", ours, "MiB", "numpy", tree_mib([site / "numpy", site / "numpy.libs"]) / ours)


def collected(command):
    """Runs a benchmark and passes its lines on; a line that has not the form is an error of the benchmark."""
    process = subprocess.Popen(
        [str(c) for c in command],
        stdout=subprocess.PIPE,
        text=True,
        env=environment() | {"HOLON_BUILD_DIR": str(BUILD)},
    )
    bad = 0
    for line in process.stdout:
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or list(row) != KEYS or not isinstance(row["value"], (int, float)):
                raise ValueError("not an object of " + ", ".join(KEYS))
        except ValueError as e:
            bad += 1
            note(f"{command[-1]}: {e}: {line.rstrip()}")
            continue
        show(line.rstrip("\n"))
    code = process.wait()
    if code or bad:
        raise RuntimeError(f"{command[-1]}: exit status {code}, {bad} lines that are not a result")


def benchmarks():
    """name -> what runs it; a name may have a C++ program and a script."""
    found = {}
    for program in sorted(BUILD.glob("bench/*_bench")):
        found.setdefault(program.name.removesuffix("_bench"), []).append(lambda p=program: collected([p]))
    for script in sorted((ROOT / "benchmarks").glob("*.py")):
        if script != Path(__file__).resolve():
            found.setdefault(script.stem, []).append(lambda p=script: collected([sys.executable, p]))
    for f in (hello, memory, size):
        found.setdefault(f.__name__, []).append(f)
    return found


def described(names):
    """What the figures are measured on, and when."""
    commit = subprocess.run(
        ["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True
    ).stdout.strip()
    model = next(
        (x.split(":")[1].strip() for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")),
        platform.machine(),
    )
    return {
        "machine": model,
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        "build": BUILD.name,
        "commit": commit or "?",
        "date": datetime.date.today().isoformat(),
        "command": " ".join(["./dev bench", *names]),
    }


def main():
    known = benchmarks()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    parser.add_argument(
        "--save", type=Path, metavar="FILE", help="a file that gets the machine and the lines: docs/benchmarks.md"
    )
    args = parser.parse_args()
    names = args.names or [n for n in known if n not in BY_NAME_ONLY]
    for n in names:
        if n not in known:
            parser.error(f"no benchmark {n}; there are {', '.join(known)}")
    if args.save and not args.save.parent.is_dir():
        parser.error(f"--save {args.save}: there is no folder {args.save.parent}; make it first")
    machine = described(args.names)
    note("{machine}, {cores} cores, load {load}, {build} build of {commit}".format(**machine))
    failed = 0
    for n in names:
        for job in known[n]:
            try:
                job()
            except (RuntimeError, OSError, subprocess.TimeoutExpired) as e:
                failed += 1
                note(f"{n}: {e}")
    if args.save and not failed:
        args.save.write_text("\n".join([json.dumps(machine), *saved, ""]))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
