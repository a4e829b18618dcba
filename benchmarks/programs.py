#!/usr/bin/env python3
"""Ten small C++ programs (benchmarks/programs), written for Holon and for libtorch: how long the compiler takes, and
how long a program takes from start to end.

libtorch is the one of the Python that $HOLON_BENCH_TORCH_PYTHON names; without it nothing is printed. Compilers and
programs of both are run in turns. One JSON object a line.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("HOLON_BUILD_DIR", ROOT / "build/dev"))
REPEATS = 3


def seconds(command, **options):
    start = time.perf_counter()
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    if done.returncode:
        sys.exit(f"programs: {command[0]} failed: {done.stderr}")
    return time.perf_counter() - start


def torch_flags(python):
    """What compiles and what links a program of libtorch."""
    script = (
        "import torch, json; from torch.utils import cpp_extension as e;"
        "print(json.dumps([e.include_paths(), e.library_paths(), torch.compiled_with_cxx11_abi()]))"
    )
    includes, libraries, abi = json.loads(
        subprocess.run([python, "-c", script], capture_output=True, text=True, check=True).stdout
    )
    compiles = [f"-I{i}" for i in includes] + [f"-D_GLIBCXX_USE_CXX11_ABI={int(abi)}"]
    links = [f for d in libraries for f in (f"-L{d}", f"-Wl,-rpath,{d}")] + ["-ltorch", "-ltorch_cpu", "-lc10"]
    return compiles, links


def emit(name, ours, theirs):
    line = {"name": name, "value": round(ours, 4), "unit": "s", "against": "libtorch", "ratio": round(theirs / ours, 3)}
    print(json.dumps(line), flush=True)
    return theirs / ours


def main():
    python = os.environ.get("HOLON_BENCH_TORCH_PYTHON")
    if not python:
        print("programs: HOLON_BENCH_TORCH_PYTHON names no Python with PyTorch: nothing is compared", file=sys.stderr)
        return
    compiles, links = torch_flags(python)
    ways = {
        "holon": ([f"-I{ROOT}", f"-I{BUILD}/generated"], [BUILD / "lib/libholon.so", f"-Wl,-rpath,{BUILD}/lib"]),
        "torch": (compiles, links),
    }
    compiled, started = [], []
    with tempfile.TemporaryDirectory() as folder:
        for program in sorted((ROOT / "benchmarks/programs/holon").glob("*.cpp")):
            compiling, running = ({way: [] for way in ways} for _ in range(2))
            for repeat in range(REPEATS):
                for way, (compiles, links) in ways.items():
                    source = ROOT / "benchmarks/programs" / way / program.name
                    made = Path(folder, f"{way}_{program.stem}")
                    compiling[way].append(seconds(["c++", "-std=c++20", *compiles, "-c", source, "-o", f"{made}.o"]))
                    if repeat == 0:
                        seconds(["c++", f"{made}.o", "-o", made, *links])
            for _ in range(2 * REPEATS):
                for way in ways:
                    running[way].append(seconds([Path(folder, f"{way}_{program.stem}")], cwd=folder))
            for what, times, ratios in (("compile", compiling, compiled), ("run", running, started)):
                ratios.append(emit(f"{what} {program.stem}", *(statistics.median(times[w]) for w in ways)))
    for what, ratios in (("compile", compiled), ("run", started)):
        ratio = math.exp(statistics.fmean(map(math.log, ratios)))
        line = {
            "name": f"{what} ten programs, geometric mean",
            "value": round(ratio, 3),
            "unit": "x",
            "against": "libtorch",
        }
        print(json.dumps(line | {"ratio": round(ratio, 3)}), flush=True)


if __name__ == "__main__":
    main()
