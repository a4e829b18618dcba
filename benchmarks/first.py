#!/usr/bin/env python3
"""What a newcomer waits for, against the limits that Holon has set itself: ./dev bench first

A fresh clone of the last commit, with a compiler's cache of its own that is empty, up to the first step of ./dev demo
and up to ./dev build; `import holon` there; from a wheel in dist/ to a picture of a tensor on 8 ranks, in an empty
environment; the wheel's size. Debian's packages are there already, as the tree in which this runs needs them, and pip
uses its cache. Takes over ten minutes of all cores. HOLON_BENCH_WARM=1 leaves the compiler its usual cache: to try
this program.
"""

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 3600  # of each of the long steps
WARM = os.environ.get("HOLON_BENCH_WARM") == "1"
IMPORT = "import time; begin = time.perf_counter(); import holon; print(time.perf_counter() - begin)"
PICTURE = """
import holon as flow

def look(rank):
    x = flow.randn(8, 4, placement=flow.placement.all("cpu"), sbp=flow.sbp.split(0))
    return str(flow.visualize(x)) if rank == 0 else ""

assert "rank 7" in flow.run_ranks(8, look)[0]
"""


def emit(name, value, unit, limit):
    row = {"name": f"first: {name}", "value": round(value, 3), "unit": unit, "against": f"limit of {limit} {unit}"}
    print(json.dumps(row | {"ratio": round(limit / value, 3)}), flush=True)


def environment(cache):
    """That of a newcomer's shell: without what run.py has set for a benchmark of this tree."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "OMP_NUM_THREADS", "HOLON_BUILD_DIR")}
    return env if WARM else env | {"CCACHE_DIR": str(cache)}


def seconds_until(patterns, command, cwd, env):
    """Runs the command to its end; for each pattern the seconds after which a line of the output had it."""
    begin, found, last = time.monotonic(), [None] * len(patterns), []
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    watch = threading.Timer(LIMIT_S, os.killpg, (process.pid, signal.SIGKILL))
    watch.start()
    try:
        for line in process.stdout:
            last = [*last[-30:], line]
            for i, pattern in enumerate(patterns):
                if found[i] is None and re.search(pattern, line):
                    found[i] = time.monotonic() - begin
        code = process.wait()
    finally:
        watch.cancel()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    if code or None in found:
        missing = [p for p, at in zip(patterns, found) if at is None]
        sys.exit(f"{' '.join(command)}: exit status {code}, no line with {missing}; it ended with\n{''.join(last)}")
    return found


def clone(folder):
    """A clone of the last commit, and the seconds that it took."""
    commit = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    if subprocess.run(["git", "-C", ROOT, "diff", "--quiet", "HEAD"]).returncode:
        print("first: what is not committed is not measured", file=sys.stderr)
    begin = time.monotonic()
    subprocess.run(["git", "clone", "-q", ROOT, folder], check=True)
    subprocess.run(["git", "-C", folder, "checkout", "-q", "--detach", commit], check=True)
    return time.monotonic() - begin


def of_the_tree(folder):
    tree = folder / "holon"
    cloned, env = clone(tree), environment(folder / "cache")
    how = f"{len(os.sched_getaffinity(0))} cores, {'compiler cache as it was' if WARM else 'empty compiler cache'}"
    # One step is as long as the first of many.
    demo = ["./dev", "demo", "--steps", "1", "--sample", "1"]
    built, stepped = seconds_until(["==> training a GPT", r"\bstep +1 "], demo, tree, env)
    emit(f"clone to first training step, {how}", cloned + stepped, "s", 240)
    begin = time.monotonic()
    seconds_until([], ["./dev", "build"], tree, env)
    emit(f"clone to all built, {how}", cloned + built + time.monotonic() - begin, "s", 480)
    python = tree / ".venv/bin/python"
    times = [float(subprocess.check_output([python, "-c", IMPORT], env=env, text=True)) for _ in range(6)]
    emit("import holon", statistics.median(times[1:]), "s", 0.1)


def of_the_wheel(folder):
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    wheels = sorted((ROOT / "dist").glob(f"holon_tensor-*-{python}-*.whl"), key=lambda w: w.stat().st_mtime)
    if not wheels:
        print(f"first: dist/ has no wheel for {python} (./dev wheel builds it): none is measured", file=sys.stderr)
        return
    wheel, env, program = wheels[-1], environment(folder), folder / "picture.py"
    program.write_text(PICTURE)
    python, begin = folder / "env/bin/python", time.monotonic()
    for command in (
        [sys.executable, "-m", "venv", folder / "env"],
        [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-input", wheel],
        [python, program],
    ):
        done = subprocess.run(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    emit("wheel to a picture of a tensor on 8 ranks", time.monotonic() - begin, "s", 60)
    emit("wheel's size", wheel.stat().st_size / 1e6, "MB", 60)


def main():
    with tempfile.TemporaryDirectory(prefix="holon-first-") as folder:
        of_the_wheel(Path(folder))
        of_the_tree(Path(folder))


if __name__ == "__main__":
    main()
