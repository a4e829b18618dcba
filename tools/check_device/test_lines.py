"""A plugin of pytest's: $CHECK_DEVICE_KEPT gets a line for each test that begins and ends, as run_tests.py reads them.
Tests that it lists as done, or as begun and not ended, are left out."""

import os
import sys
import time
from pathlib import Path

import pytest

KEPT = Path(os.environ["CHECK_DEVICE_KEPT"])
LOST = 99  # the exit status after an error that no later call of CUDA's survives


def note(*words):
    with open(KEPT, "a") as file:
        file.write("\t".join(words) + "\n")
        file.flush()
        os.fsync(file.fileno())


def pytest_collection_modifyitems(config, items):
    known = {line.split("\t")[1] for line in KEPT.read_text().splitlines() if line.startswith(("begin\t", "end\t"))}
    left_out = [item for item in items if item.nodeid in known]
    items[:] = [item for item in items if item.nodeid not in known]
    config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    start = time.monotonic()
    note("begin", item.nodeid)
    item.check_device = ["passed", ""]
    result = yield
    outcome, detail = item.check_device
    note("end", item.nodeid, outcome, f"{time.monotonic() - start:.2f}", detail)
    if outcome == "failed" and not device_works():
        note("lost")
        os._exit(LOST)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        item.check_device = ["failed", one_line(report.longreprtext)]
    elif report.skipped and item.check_device[0] == "passed":
        expected = hasattr(report, "wasxfail")
        item.check_device = ["passed", ""] if expected else ["skipped", one_line(str(report.longrepr[2]))]
    return report


def one_line(text):
    """The errors in a report, as pytest marks them."""
    errors = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    return " ".join(" ".join(errors or text.split("\n")[-1:]).split())[:600]


def device_works():
    flow = sys.modules.get("holon")
    for _ in range(2):  # the first call may report an error of an earlier kernel, which is over with that
        try:
            if flow:
                flow.cuda.synchronize()
            return True
        except Exception:
            pass
    return False
