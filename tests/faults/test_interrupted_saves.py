"""A sample of tests/campaigns/saves.py, and what is made to last in which order."""

import subprocess
import sys
import textwrap

import pytest
from harness.ranks import ROOT, environment

sys.path.insert(0, str(ROOT / "tests/campaigns"))
import checkpoints  # noqa: E402
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


def test_checkpointers_that_are_interrupted_lose_nothing(tmp_path, library):
    rounds = list(checkpoints.stream(str(tmp_path / "checkpoint"), 1, 15))
    assert [r for r in rounds if r["bad"]] == []
    assert len(rounds) == 16 and any(not r["complete"] for r in rounds)
    assert {r["asynchronous"] for r in rounds} == {True, False}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_calls_that_fail_lose_nothing(tmp_path, library, asynchronous):
    """Each call of a save fails, once or from there on: the disk is full, or there is no permission."""
    program = textwrap.dedent("""
        import ctypes, errno, sys
        import holon
        sys.path.insert(0, sys.argv[2])
        from checkpoints import State

        faults, asynchronous = ctypes.CDLL(sys.argv[1]), sys.argv[3] == "True"
        state = State(1)
        checkpoints = holon.checkpoint.Checkpointer("checkpoint", keep=1, state=state, asynchronous=asynchronous)
        newest, at, failed, succeeded = 0, 0, 0, 0
        while True:
            for error, forever in (("ENOSPC", 0), ("ENOSPC", 1), ("EACCES", 1), ("EIO", 0)):
                step = newest + 1
                state.set(step)
                faults.fail_with(at, getattr(errno, error), forever)
                try:
                    checkpoints.save(step)
                    checkpoints.wait()
                    saved = True
                except RuntimeError as e:
                    saved = False
                    assert f"step {step} was not saved" in str(e) and "checkpoint/step-" in str(e), e
                calls = faults.calls_made()
                faults.fail_with(-1, 0, 0)
                found = holon.checkpoint.Checkpointer("checkpoint", state=state).restore()
                there = (found.step, state.loaded) if found else (0, 0)
                allowed = {step} if saved else {step, newest}
                assert there[0] in allowed and there[1] == there[0], (at, error, forever, there, allowed)
                for old in checkpoints.steps():
                    holon.checkpoint.verify(checkpoints.path(old))
                newest = there[0]
                failed, succeeded = failed + (not saved), succeeded + saved
            if calls <= at:
                break
            at += 1
        state.set(newest + 1)
        checkpoints.save(newest + 1)
        checkpoints.wait()
        assert checkpoints.steps() == [newest + 1], checkpoints.steps()
        print("failed" if failed > 10 and succeeded > 3 and at > 10 else (failed, succeeded, at))
    """)
    done = subprocess.run(
        [sys.executable, "-c", program, str(library), str(ROOT / "tests/campaigns"), str(asynchronous)],
        env=environment(LD_PRELOAD=library),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "failed\n"


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
