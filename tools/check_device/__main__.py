"""Checks Holon on a machine with a CUDA device, in four parts of at most nine minutes each: ./dev check-device [A] [B]
[C] [D] (in a pack: ./run check-device).

  A  the backend loads and computes; tests/cuda on the device, in parallel
  B  real sizes against torch (by DLPack), twice with the same bits; kernels under compute-sanitizer
  C  benchmarks/cuda.py, beside torch: eager, compiled, fused AdamW, attention, convolutions, clipping
  D  a training with and without recordings (CUDA graphs); the kernels of a GPT-2 step by torch's profiler, ncu and nsys

RESULTS/A.jsonl (results.py) gets a line as soon as a check ends, and RESULTS/A/ holds what checks printed: a crash or a
limit of time loses nothing. The next call runs what has not run or has failed; --again runs everything. Without names
the parts run one after the other. The exit status is 0 if every check passed or was skipped."""

import argparse
import fnmatch
import importlib.util
import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from .parts import PARTS, ROOT
from .results import GOOD, Results
from .runner import Runner

PART_S = 520  # of a limit of 9 minutes, with the time that it takes to begin and to end


DEVICE = """
import holon
print(holon.cuda.get_device_name(0) if holon.cuda.is_available() else "!" + holon._C.why_no_device())
"""


def device_name():
    """In a process of its own: this one holds no memory of the device, and does not hang with it."""
    try:
        done = subprocess.run([sys.executable, "-c", DEVICE], capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        sys.exit("check-device: the device did not answer within 120 s")
    if done.returncode:
        sys.exit(f"check-device: holon does not load: {done.stderr.strip()}")
    if done.stdout.startswith("!"):
        sys.exit(f"check-device: there is no device: {done.stdout[1:].strip()}")
    return done.stdout.strip()


def options_of(args):
    args.results = args.results.absolute()
    if library := os.environ.get("HOLON_CUDA_LIBRARY"):
        os.environ["HOLON_CUDA_LIBRARY"] = os.path.abspath(library)  # tests run in other folders
    name = device_name()
    args.emulated = name == "emulated device"
    args.small = args.small or args.emulated
    args.torch = importlib.util.find_spec("torch") is not None
    print(f"check-device: {name}, results in {args.results}", flush=True)
    return args


def link_packages():
    """In a pack: programs in C++ look for NVIDIA's libraries in nvidia/*/lib of the folders above libholon.so. Python's
    packages, which holon finds by Python's path, are elsewhere."""
    packages, link = importlib.util.find_spec("nvidia"), ROOT / "nvidia"
    if packages and (ROOT / "pack.json").exists() and not link.is_symlink():
        try:
            link.symlink_to(next(iter(packages.submodule_search_locations)))
        except OSError as error:
            print(f"check-device: programs in C++ may not find NVIDIA's libraries: {error}", flush=True)


def workers_of(part, args):
    """Tests share the device; figures are taken by one process at a time."""
    return (args.jobs or max(1, min(8, len(os.sched_getaffinity(0)) // 2))) if part == "A" else 1


def run_part(part, args):
    """Returns whether all its checks passed."""
    results = Results(args.results, part)
    checks = [c for c in PARTS[part](args) if not args.only or any(fnmatch.fnmatch(c.name, o) for o in args.only)]
    workers = workers_of(part, args)
    os.environ["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // workers))
    print(f"part {part}: {PARTS[part].__doc__} {len(checks)} checks", flush=True)
    runner = Runner(results, time.monotonic() + args.seconds, workers, lambda text: print(f"  {text}", flush=True))
    left = runner.run(checks, args.again)
    return summary(part, checks, results, left)


def summary(part, checks, results, left):
    statuses = results.statuses()
    counts = Counter(statuses[c.name]["status"] for c in checks if c.name in statuses and c.name not in left)
    text = ", ".join(f"{n} {status}" for status, n in counts.items()) or "nothing ran"
    print(f"part {part}: {text}" + (f"; not begun: {', '.join(left)}" if left else ""))
    for check in checks:
        line = statuses.get(check.name)
        if line and line["status"] not in GOOD:
            print(f"  {line['status']}: {check.name}: {line['detail']}")
            for found in results.last_run(check.name):
                if "outcome" in found:
                    print(f"    {found['outcome']}: {found['test']}: {found['detail']}")
    figures = [x for x in results.lines() if "ratio" in x]
    for x in {(x["name"], x["against"]): x for x in figures}.values():
        ratio = f", {x['ratio']} of {x['against']}" if x["against"] else ""
        print(f"  {x['name']}: {x['value']:.4g} {x['unit']}{ratio}")
    sys.stdout.flush()
    return not left and all(statuses[c.name]["status"] in GOOD for c in checks)


def main():
    parser = argparse.ArgumentParser(
        prog="check-device", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART", help="A, B, C, D")
    parser.add_argument("--again", action="store_true", help="run what has passed, too")
    parser.add_argument("--small", action="store_true", help="tiny sizes, which the emulator always has")
    parser.add_argument("--only", action="append", metavar="PATTERN", help="only checks of such a name, as test_m*")
    parser.add_argument("--list", action="store_true", help="print the names of the checks, and run none")
    parser.add_argument("--results", type=Path, default=Path("results"), help="a folder (results)")
    parser.add_argument("--seconds", type=float, default=PART_S, help=f"the time of a part ({PART_S})")
    parser.add_argument("--jobs", type=int, help="processes of part A at a time (half of the cores, 8 at most)")
    args = options_of(parser.parse_args())
    if args.list:
        for part in args.parts or PARTS:
            print(*(f"{part} {check.name}" for check in PARTS[part](args)), sep="\n")
        return 0
    link_packages()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is in the log
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return 0 if all([run_part(part, args) for part in args.parts or PARTS]) else 1
    except KeyboardInterrupt:
        print("check-device: interrupted; the next call goes on from here", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
