"""The checks of each part, the most valuable first. A check is a process; the other modules of this package are their
programs."""

import os
import shutil
import sys
from pathlib import Path

from .benchmark import PROGRAM, benchmark
from .curves import MODES
from .real_sizes import CHECKS
from .results import Results
from .runner import Check

ROOT = Path(__file__).resolve().parents[2]

# What everything else rests on comes first; files that are not named here come last. The conformance table's worlds
# take minutes each: one check each, begun early.
FIRST = """
test_runtime test_memory test_elementwise test_matmul test_attention test_dnn test_reduce test_norm test_softmax
test_loss test_training test_conformance test_graph test_recordings test_fused test_optim test_index test_copy
test_tensor test_random test_pinned test_every_op test_conv test_pool test_rnn test_sort test_boxing
test_point_to_point test_example""".split()
WORLDS = ("one_rank", "two_ranks", "2x2_ranks", "two_of_three_ranks", "three_ranks")
OF_TOOLS = ("test_check_device", "test_pack")  # this one, and what it comes in
OF_THE_EMULATOR = ("test_resources", "test_order", "test_support")  # what they judge is not the device's
SANITIZED = ("attention", "rows", "ordered")  # sanitized.py
# The clocks are left as they are: others may share the device.
PROFILERS = {
    "ncu": "--profile-from-start off --clock-control none --set basic --launch-count 400 --log-file {folder}/ncu.txt",
    "nsys": "profile -t cuda --capture-range=cudaProfilerApi --stats=true --force-overwrite=true -o {folder}/nsys",
}


def module(name, *arguments):
    return [sys.executable, "-m", f"check_device.{name}", *map(str, arguments)]


def part_a(options):
    """The backend loads, and tests/cuda passes on the device."""
    yield Check("device", module("device"), 120)
    left_out = OF_TOOLS + (() if options.emulated else OF_THE_EMULATOR)
    files = {p.stem: p for p in (ROOT / "tests/cuda").glob("test_*.py") if p.stem not in left_out}
    for name in [n for n in FIRST if n in files] + sorted(files.keys() - {*FIRST}):
        if name == "test_conformance":
            for world in WORLDS:
                yield tests(options, f"{name}[{world}]", f"{files[name]}::test_table[{world}]", 300)
        else:
            yield tests(options, name, files[name], 100)


def tests(options, name, selection, limit_s):
    """limit_s is for one test: of a file, any part of the time that is left."""
    kept = Results(options.results, "A").log(name).with_suffix(".tests")
    command = module("run_tests", "--kept", kept, "--limit", limit_s, selection)
    return Check(name, command, 540, {"HOLON_TEST_CUDA": "emulator" if options.emulated else "device"})


def part_b(options):
    """Real sizes against torch, and kernels under compute-sanitizer."""
    small = ["--small"] * options.small
    reason = "" if options.torch else "this Python has no torch: HOLON_PYTHON names one that has"
    for name in CHECKS:
        yield Check(name, module("real_sizes", *small, name), 150, skip=reason)
    tool = find_tool("compute-sanitizer")
    reason = "" if tool else "compute-sanitizer is not installed"
    for kind in ("memcheck", "racecheck"):
        for name in SANITIZED:
            command = [tool, "--tool", kind, "--error-exitcode", "9", "--print-limit", "20"]
            command += module("sanitized", *small, name)
            yield Check(f"{kind} of {name}", command, 200, skip=reason)


def part_c(options):
    """benchmarks/cuda.py, one group of workloads after the other."""
    env = {"HOLON_BENCH_TORCH_PYTHON": sys.executable} if options.torch else {}
    for name in benchmark().GROUPS:
        command = [sys.executable, PROGRAM, "--group", name, *["--smoke"] * options.small]
        yield Check(name, command, 260, env)


def part_d(options):
    """A training with and without recordings, and where the time of a GPT-2 step goes."""
    small, folder = ["--small"] * options.small, options.results / "D"
    for mode, env in MODES.items():
        yield Check(f"training, {mode}", module("curves", *small, "--folder", folder, mode), 120, env)
    reason = "" if options.torch else "this Python has no torch, whose profiler lists kernels"
    for kind in ("compiled", "eager"):
        command = module("profile_step", *small, "--folder", folder, "torch", kind)
        yield Check(f"kernels of a step, {kind}", command, 120, skip=reason)
    for name, arguments in PROFILERS.items():
        tool = find_tool(name)
        command = [tool, *(a.format(folder=folder) for a in arguments.split())]
        command += module("profile_step", *small, name, "compiled")
        yield Check(f"{name} of a step", command, 200, skip="" if tool else f"{name} is not installed")


PARTS = {"A": part_a, "B": part_b, "C": part_c, "D": part_d}


def find_tool(name):
    """The path of one of NVIDIA's tools, in $PATH or in a toolkit; None if there is none."""
    folders = [Path(p) for p in os.environ.get("PATH", "").split(os.pathsep)]
    for pattern in ("cuda*/bin", "cuda*/compute-sanitizer"):
        folders += sorted(Path("/usr/local").glob(pattern), reverse=True)
    for pattern in ("nsight-*/*", "nsight-*/*/bin"):
        folders += sorted(Path("/opt/nvidia").glob(pattern), reverse=True)
    return shutil.which(name, path=os.pathsep.join(map(str, folders)))
