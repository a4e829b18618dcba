"""Runs tests in processes of pytest's that end with the first test that crashes, hangs or loses the device, each going
on after it:

  python -m check_device.run_tests --kept FILE [--limit SECONDS] TEST...

FILE keeps what has run: a second call runs the rest, and again what failed. Prints a JSON object for each test that did
not pass, and one with the counts."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from .runner import stop

MOST_PROCESSES = 25  # of one file: more crashes say nothing new
ROOT = Path(__file__).resolve().parents[2]


def read(kept):
    """{test: (outcome, detail)} of those that ended, and the one that began last if it did not end."""
    ended, begun = {}, None
    for line in kept.read_text().splitlines():
        words = line.split("\t")
        if words[0] == "begin" and len(words) == 2:
            begun = words[1]
        elif words[0] == "end" and len(words) >= 3:
            ended[words[1]] = (words[2], words[4] if len(words) > 4 else "")
            begun = None
    return ended, begun


def forget(kept):
    """Leaves what has passed or was skipped."""
    ended, _ = read(kept) if kept.exists() else ({}, None)
    kept.parent.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(["end", name, o, "", d]) for name, (o, d) in ended.items() if o in ("passed", "skipped")]
    kept.write_text("".join(line + "\n" for line in lines))


def run_once(tests, kept, limit_s):
    """Runs pytest; ends it if a test, or the collection, takes longer than limit_s. Returns how it ended."""
    command = [sys.executable, "-m", "pytest", "-q", "-rN", "--tb=short", "--timeout=0", "-p", "no:cacheprovider"]
    command += ["-p", "pytest_timeout", "-p", "check_device.test_lines", *tests]
    # Plugins that a machine happens to have take part in nothing.
    env = os.environ | {"CHECK_DEVICE_KEPT": str(kept), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=sys.stderr, start_new_session=True)
    # It has a group of its own, so that it can be ended with all it has started; whoever ends this process ends it,
    # too.
    signal.signal(signal.SIGABRT, lambda *_: (os.killpg(process.pid, signal.SIGKILL), os._exit(1)))
    size, since = -1, time.monotonic()
    while process.poll() is None:
        time.sleep(0.1)
        if kept.stat().st_size != size:
            size, since = kept.stat().st_size, time.monotonic()
        elif time.monotonic() - since > limit_s:
            stop(process)
            return "timeout", f"more than {limit_s:.0f} s"
    if process.returncode < 0:
        return "crashed", signal.Signals(-process.returncode).name
    return "crashed", f"exit status {process.returncode}"


def report(test, outcome, detail):
    print(json.dumps({"test": test, "outcome": outcome, "detail": detail}), flush=True)


def run(tests, kept, limit_s):
    forget(kept)
    reported = set(read(kept)[0])
    for _ in range(MOST_PROCESSES):
        outcome, detail = run_once(tests, kept, limit_s)
        ended, begun = read(kept)
        if begun:
            with open(kept, "a") as file:
                file.write("\t".join(["end", begun, outcome, "", detail]) + "\n")
            ended[begun] = (outcome, detail)
        for name in ended.keys() - reported:
            if ended[name][0] not in ("passed", "skipped"):
                report(name, *ended[name])
        reported |= ended.keys()
        lost = kept.read_text().endswith("lost\n")
        if not begun and not lost:
            # 5: there was nothing left to run.
            return ended, None if detail in ("exit status 0", "exit status 1", "exit status 5") else f"pytest: {detail}"
    return ended, f"{MOST_PROCESSES} processes of pytest ended early"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kept", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=100)
    parser.add_argument("tests", nargs="+")
    args = parser.parse_args()
    ended, error = run(args.tests, args.kept.absolute(), args.limit)
    counts = Counter(outcome for outcome, _ in ended.values())
    reasons = Counter(detail for outcome, detail in ended.values() if outcome == "skipped")
    print(json.dumps({"tests": counts, "why_skipped": reasons}), flush=True)
    wrong = sum(n for outcome, n in counts.items() if outcome not in ("passed", "skipped"))
    if error or wrong or not ended:
        sys.exit(error or (f"{wrong} of {len(ended)} tests did not pass" if ended else "no test ran"))


if __name__ == "__main__":
    main()
