"""A sample of tests/campaigns/saves.py, and what is made to last in which order."""

import subprocess
import sys
import textwrap

import pytest
from harness.ranks import ROOT, environment

sys.path.insert(0, str(ROOT / "tests/campaigns"))
import saves  # noqa: E402


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    built = saves.build(tmp_path_factory.mktemp("library"))
    return built or pytest.skip("there is no C++ compiler")


@pytest.mark.parametrize("form", ["holon", "hf"])
def test_saves_that_are_interrupted_lose_nothing(tmp_path, library, form):
    rounds = saves.run(str(tmp_path / "checkpoint"), 1, 15, form)
    assert [r for r in rounds if r["bad"]] == []
    assert len(rounds) == 16 and any(not r["complete"] for r in rounds)


def test_the_new_folder_and_the_parts_are_on_the_disk_before_the_index(tmp_path, library):
    program = textwrap.dedent("""
        import ctypes, os, sys
        import holon
        faults = ctypes.CDLL(sys.argv[1])
        everywhere = holon.placement("cpu", [0])
        x = holon.ones(4, placement=everywhere, sbp=holon.sbp.split(0))
        for step in range(2):
            log = os.open(f"log{step}", os.O_WRONLY | os.O_CREAT)
            faults.log_to(log)
            holon.save({"x": x}, "checkpoint")
            faults.log_to(-1)
    """)
    folder = tmp_path / "checkpoint parent"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", program, str(library)],
        env=environment(LD_PRELOAD=library),
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr

    def places(log, *wanted):
        lines = [line.split(" ", 1) for line in (folder / log).read_text().splitlines()]
        found = []
        for call, path in wanted:
            at = next((i for i, (c, p) in enumerate(lines) if c == call and p.endswith(path) and i not in found), None)
            assert at is not None, f"no {call} {path} in {lines}"
            found.append(at)
        return found

    order = places(
        "log0",
        ("mkdir", "checkpoint"),
        ("fsync", "/checkpoint parent"),
        ("rename", "-0-of-1.safetensors"),
        ("fsync", "/checkpoint"),
        ("rename", "/holon-index.json"),
        ("fsync", "/checkpoint"),
    )
    assert order == sorted(order)
    # Old parts go when the new index is there for good.
    order = places("log1", ("rename", "/holon-index.json"), ("fsync", "/checkpoint"), ("remove", "-0-of-1.safetensors"))
    assert order[0] < order[2]
    lines = (folder / "log1").read_text().splitlines()
    assert max(i for i, x in enumerate(lines) if x.startswith("fsync")) < order[2]
