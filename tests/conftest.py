"""Fast tests first, those marked slow last, so that a plain mistake shows within seconds."""

import functools
import os
import signal
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
for folder in (ROOT / "tests", ROOT / "python"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a job of a shell in the background: so would all be it starts
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("HOLON_MACHINE_COSTS", "fixed")  # plans do not depend on how busy the machine is

# ./dev test runs tests in several processes that share this folder: each takes a file of tests that no other has taken.
# What tests run by pytest themselves is run whole.
SHARED = os.environ.pop("HOLON_TEST_SHARED", None)


@functools.cache
def is_taken(path):
    try:
        os.close(os.open(Path(SHARED) / str(path.relative_to(ROOT)).replace("/", "."), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return True
    return False


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    """pytest's own loop, over the tests that are this process's: what is torn down after one depends on the next."""
    if not SHARED or session.testsfailed:
        return None
    own = (item for item in session.items if not is_taken(item.path))
    item = next(own, None)
    while item is not None:
        following = next(own, None)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following
    return True


def pytest_addoption(parser):
    parser.addoption("--campaigns", action="store_true", help="run tests/campaigns: hundreds of random faults, an hour")
    parser.addoption("--seed", type=int, default=0, help="the first round's seed in a campaign")
    parser.addoption("--minutes", type=float, default=50, help="for so long a campaign begins rounds")


def pytest_ignore_collect(collection_path, config):
    """tests/cuda chooses the process's devices: it is run by itself (./dev test does, after the others)."""
    if collection_path == ROOT / "tests/campaigns" and not config.getoption("--campaigns"):
        return True
    alone = any(
        (Path(config.invocation_params.dir) / a.split("::")[0]).resolve().is_relative_to(ROOT / "tests/cuda")
        for a in config.args
    )
    return True if collection_path == ROOT / "tests/cuda" and not alone else None


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
