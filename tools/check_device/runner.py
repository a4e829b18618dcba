"""Runs the checks of a part: each in a process with a time limit, so that one that crashes or hangs costs one line."""

import json
import os
import signal
import subprocess
import threading
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

LEAST_S = 5  # with less time left in the part no check begins
GRACE_S = 3  # after SIGABRT, at which Python prints where it is


@dataclass
class Check:
    name: str
    command: list
    limit_s: float
    env: dict = field(default_factory=dict)
    skip: str = ""  # why it cannot run here


def stop(process):
    """Ends a process and all that it has started."""
    for which, wait_s in ((signal.SIGABRT, GRACE_S), (signal.SIGKILL, 10)):
        try:
            os.killpg(process.pid, which)
            process.wait(wait_s)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass


def last_line(path):
    """What it says of an error: figures are in the results."""
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines()]
    lines = [line for line in lines if line and not line.startswith("{")]
    return lines[-1][:500] if lines else ""


class Runner:
    def __init__(self, results, deadline, workers=1, say=print):
        self.results, self.deadline, self.workers, self.say = results, deadline, workers, say
        self.running = set()
        self.lock = threading.Lock()
        self.stopped = False

    def run(self, checks, again=False):
        """Runs those that have not passed yet, in their order but those that have never run first, as long as there is
        time. Returns the names of what is left."""
        if again:
            for check in checks:
                self.results.log(check.name).with_suffix(".tests").unlink(missing_ok=True)
        done = {} if again else {name: line["status"] for name, line in self.results.statuses().items()}
        waiting = [c for c in checks if done.get(c.name) != ("skipped" if c.skip else "passed")]
        waiting.sort(key=lambda c: c.name in done)
        busy = set()
        with ThreadPoolExecutor(self.workers) as pool:
            try:
                while (waiting and self.left() > LEAST_S) or busy:
                    while waiting and len(busy) < self.workers and self.left() > LEAST_S:
                        busy.add(pool.submit(self.one, waiting.pop(0)))
                    finished, busy = wait(busy, return_when=FIRST_COMPLETED)
                    for future in finished:
                        future.result()
            except BaseException:
                self.stop_all()
                raise
        return [c.name for c in waiting]

    def left(self):
        return self.deadline - time.monotonic()

    def stop_all(self):
        with self.lock:
            self.stopped = True
            for process in self.running:
                stop(process)

    def one(self, check):
        start = time.monotonic()
        if check.skip:
            status, detail = "skipped", check.skip
        else:
            status, detail = self.status_of(check)
        if self.stopped:
            return
        seconds = round(time.monotonic() - start, 1)
        self.results.write({"check": check.name, "status": status, "seconds": seconds, "detail": detail})
        self.say(f"{status:8} {check.name} ({seconds} s){': ' + detail if detail else ''}")

    def status_of(self, check):
        limit_s, log = min(check.limit_s, self.left()), self.results.log(check.name)
        env = os.environ | {"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"} | check.env
        log.unlink(missing_ok=True)
        with self.lock, open(log, "ab") as output:
            if self.stopped:
                return "cut off", ""
            process = subprocess.Popen(
                [str(c) for c in check.command],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )
            self.running.add(process)
        reader = threading.Thread(target=self.keep_lines, args=(check, process.stdout, log), daemon=True)
        reader.start()
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        stop(process)  # what it has left running, too
        reader.join(GRACE_S)
        with self.lock:
            self.running.discard(process)
        if code is None and limit_s < check.limit_s:
            return "cut off", f"the part's time ended after {limit_s:.0f} s: another call goes on"
        if code is None:
            return "timeout", f"more than {limit_s:.0f} s; the end of {log.name}: {last_line(log)}"
        if code < 0:
            return "crashed", f"{signal.Signals(-code).name}; the end of {log.name}: {last_line(log)}"
        if code == 0:
            return "passed", ""
        return "failed", last_line(log) or f"exit status {code}"

    def keep_lines(self, check, stream, log):
        """What the check prints goes to its log, and lines that are JSON objects to the results, as they come."""
        for text in stream:
            with open(log, "ab") as output:
                output.write(text)
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict):
                self.results.write({"check": check.name} | line)
