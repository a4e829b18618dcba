"""FOLDER/A.jsonl: what the checks of a part found, one JSON object a line, on the disk before the next begins.

  {"check": NAME, "status": "passed", "failed", "crashed", "timeout", "skipped" or "cut off", "seconds": ...}
  {"check": NAME, ...}   what a check found while it ran: figures, tests that failed

The last line with a status is the check's. A line that a crash of the machine cut short is ignored."""

import json
import os
import threading

GOOD = ("passed", "skipped")


class Results:
    def __init__(self, folder, part):
        self.folder = folder / part
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{part}.jsonl"
        self._lock = threading.Lock()

    def log(self, check):
        """The file that holds what a check printed."""
        return self.folder / ("".join(c if c.isalnum() or c in "._-" else "_" for c in check) + ".log")

    def write(self, line):
        text = json.dumps(line) + "\n"
        with self._lock, open(self.path, "ab+") as file:
            if file.tell() and not _ends_a_line(file):
                text = "\n" + text
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())

    def lines(self):
        if not self.path.exists():
            return []
        found = []
        for text in self.path.read_text(errors="replace").splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict) and "check" in line:
                found.append(line)
        return found

    def statuses(self):
        """{check: its last line with a status}"""
        return {line["check"]: line for line in self.lines() if "status" in line}

    def last_run(self, check):
        """What its last run found, which its line with the status ends."""
        lines = [line for line in self.lines() if line["check"] == check]
        ends = [i for i, line in enumerate(lines) if "status" in line]
        begin = ends[-2] + 1 if len(ends) > 1 else 0
        return lines[begin : ends[-1]] if ends else lines


def _ends_a_line(file):
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"
