"""./dev check-device: what its checks find is kept whatever they do, and a second call runs the rest. What the checks
themselves do is tested in tests/cuda/test_check_device.py, on the emulator."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from harness.ranks import ROOT

sys.path.insert(0, str(ROOT / "tools"))
from check_device import run_tests  # noqa: E402
from check_device.benchmark import benchmark  # noqa: E402
from check_device.results import Results  # noqa: E402
from check_device.runner import Check, Runner  # noqa: E402

sys.path.pop(0)


def check(name, code, limit_s=60, **options):
    return Check(name, [sys.executable, "-c", textwrap.dedent(code)], limit_s, **options)


def run(tmp_path, checks, seconds=60, workers=1):
    results = Results(tmp_path, "A")
    left = Runner(results, time.monotonic() + seconds, workers, lambda text: None).run(checks)
    return {name: (line["status"], line["detail"]) for name, line in results.statuses().items()}, left


HANG = "import time; print('begun', flush=True); time.sleep(600)"
CRASH = "import os, signal; print('before it', flush=True); os.kill(os.getpid(), signal.SIGSEGV)"


def test_what_crashes_or_hangs_costs_one_line(tmp_path):
    checks = [
        check("passes", "print('fine')"),
        check("crashes", CRASH),
        check("hangs", HANG, limit_s=2),
        check("fails", "import sys; sys.exit('what was wrong')"),
        check("is not run", "raise SystemExit(1)", skip="there is no torch"),
        check("has the environment", "import os; assert os.environ['SETTING'] == 'x'", env={"SETTING": "x"}),
    ]
    found, left = run(tmp_path, checks)
    assert left == []
    assert found["passes"] == found["has the environment"] == ("passed", "")
    status, detail = found["crashes"]
    assert status == "crashed" and detail.startswith("SIGSEGV; the end of crashes.log: ")
    status, detail = found["hangs"]
    assert status == "timeout" and detail.startswith("more than 2 s")
    assert found["fails"] == ("failed", "what was wrong")
    assert found["is not run"] == ("skipped", "there is no torch")
    assert "before it" in (tmp_path / "A/crashes.log").read_text()
    assert "File" in (tmp_path / "A/hangs.log").read_text()  # where it was, by Python's fault handler


def test_a_second_call_runs_what_did_not_pass(tmp_path):
    ran = tmp_path / "ran"

    def checks(fixed):
        note = f"open({str(ran)!r}, 'a').write('%s ')"
        yield check("passes", note % "passes")
        yield check("crashes", note % "crashes" + ("" if fixed else "\n" + CRASH))

    found, _ = run(tmp_path, list(checks(False)))
    assert (found["passes"][0], found["crashes"][0]) == ("passed", "crashed")
    # What has never run comes before what has failed.
    new = check("new", f"open({str(ran)!r}, 'a').write('new ')")
    found, _ = run(tmp_path, [*checks(True), new])
    assert (found["passes"][0], found["crashes"][0]) == ("passed", "passed")
    assert ran.read_text() == "passes crashes new crashes "
    run(tmp_path, [*checks(True), new])
    assert ran.read_text() == "passes crashes new crashes "


def test_what_was_skipped_runs_once_it_can(tmp_path):
    assert run(tmp_path, [check("a", "", skip="no torch")])[0] == {"a": ("skipped", "no torch")}
    assert run(tmp_path, [check("a", "")])[0] == {"a": ("passed", "")}


def test_again_runs_what_has_passed(tmp_path):
    """And what it finds is told from what the first run found."""
    for i in range(2):
        line = f"print('{{\"value\": {i}}}')"
        Runner(Results(tmp_path, "A"), time.monotonic() + 60, 1, lambda text: None).run([check("a", line)], again=True)
    assert [x["value"] for x in Results(tmp_path, "A").lines() if "value" in x] == [0, 1]
    assert Results(tmp_path, "A").last_run("a") == [{"check": "a", "value": 1}]


def test_figures_are_kept_as_they_come(tmp_path):
    code = "import json\nfor i in range(3): print(json.dumps({'value': i}), flush=True)\nprint('{no figure')\n" + CRASH
    run(tmp_path, [check("crashes", code)])
    lines = Results(tmp_path, "A").lines()
    assert [x["value"] for x in lines if "value" in x] == [0, 1, 2] and lines[-1]["status"] == "crashed"
    assert all(x["check"] == "crashes" for x in lines)


def test_a_line_that_was_cut_short_spoils_no_other(tmp_path):
    results = Results(tmp_path, "A")
    results.write({"check": "a", "status": "passed"})
    with open(results.path, "a") as file:
        file.write('{"check": "b", "sta')
    results.write({"check": "c", "status": "failed"})
    assert {name: line["status"] for name, line in results.statuses().items()} == {"a": "passed", "c": "failed"}


@pytest.mark.slow
def test_a_part_ends_in_time(tmp_path):
    start = time.monotonic()
    found, left = run(tmp_path, [check("long", HANG, limit_s=600), check("next", "")], seconds=8)
    assert found["long"][0] == "cut off" and "next" not in found and left == ["next"]
    assert time.monotonic() - start < 60
    # The next call runs both.
    found, left = run(tmp_path, [check("long", ""), check("next", "")])
    assert left == [] and {status for status, _ in found.values()} == {"passed"}


def test_checks_run_side_by_side(tmp_path):
    """Each waits for the other."""
    wait = """
        import pathlib, time
        folder = pathlib.Path({folder!r})
        (folder / "{own}").touch()
        while not (folder / "{other}").exists(): time.sleep(0.01)
    """
    checks = [
        check(own, textwrap.dedent(wait).format(folder=str(tmp_path), own=own, other=other))
        for own, other in (("x", "y"), ("y", "x"))
    ]
    found, _ = run(tmp_path, checks, workers=2)
    assert found == {"x": ("passed", ""), "y": ("passed", "")}


def test_nothing_is_left_running(tmp_path):
    """A check that ends, or hangs, leaves none of what it started."""
    start = """
import subprocess, sys
p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
print(p.pid, flush=True)
"""
    run(tmp_path, [check("ends", start), check("hangs", start + HANG, limit_s=3)])
    for name in ("ends", "hangs"):
        pid = int((tmp_path / f"A/{name}.log").read_text().split()[0])
        deadline = time.monotonic() + 20
        while alive(pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not alive(pid), name


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


# What run_tests.py does with a file of tests.
TESTS = """
import os
import signal
import time
import pytest

def test_one():
    pass

def test_wrong():
    assert 1 + 1 == 3

@pytest.mark.skip(reason="there is one device")
def test_left_out():
    pass

def test_crashing():
    os.kill(os.getpid(), signal.SIGSEGV)

def test_between():
    pass

def test_hanging():
    {hanging}

@pytest.mark.xfail
def test_known():
    assert False

def test_last():
    pass
"""


def run_file(tmp_path, text, limit_s=5, path=()):
    (tmp_path / "test_it.py").write_text(text)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([*map(str, path), str(ROOT / "python"), str(ROOT / "tools")])}
    command = [sys.executable, "-m", "check_device.run_tests", "--kept", tmp_path / "kept", "--limit", str(limit_s)]
    done = subprocess.run([*command, tmp_path / "test_it.py"], env=env, capture_output=True, text=True, timeout=200)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    found = {line["test"].split("::")[1]: (line["outcome"], line["detail"]) for line in lines if "test" in line}
    return done, found, lines[-1]


@pytest.mark.slow
def test_tests_after_a_crash_and_a_hang_run(tmp_path):
    done, found, last = run_file(tmp_path, TESTS.format(hanging="time.sleep(600)"))
    assert done.returncode == 1 and "3 of 8 tests did not pass" in done.stderr
    assert {name: outcome for name, (outcome, _) in found.items()} == {
        "test_wrong": "failed",
        "test_crashing": "crashed",
        "test_hanging": "timeout",
    }
    assert found["test_wrong"][1] == "assert (1 + 1) == 3" and found["test_crashing"][1] == "SIGSEGV"
    assert last["tests"] == {"passed": 4, "failed": 1, "skipped": 1, "crashed": 1, "timeout": 1}
    assert last["why_skipped"] == {"Skipped: there is one device": 1}
    # A second call runs the three again, and nothing else.
    done, found, last = run_file(
        tmp_path, TESTS.format(hanging="pass").replace("os.kill", "print").replace("== 3", "== 2")
    )
    assert done.returncode == 0 and found == {} and last["tests"] == {"passed": 7, "skipped": 1}, done.stderr
    assert "3 passed, 5 deselected" in done.stderr


def test_a_process_that_lost_its_device_is_left(tmp_path):
    """After such an error every later call fails: tests that follow would be judged by it."""
    (tmp_path / "holon.py").write_text(
        "class cuda:\n    lost = False\n    @classmethod\n    def synchronize(cls):\n"
        "        if cls.lost: raise RuntimeError('an illegal memory access')\n"
    )
    text = """
import holon
def test_losing():
    holon.cuda.lost = True
    assert False, "an illegal memory access"
def test_next():
    assert not holon.cuda.lost
"""
    done, found, last = run_file(tmp_path, text, path=[tmp_path])
    assert found.keys() == {"test_losing"} and last["tests"] == {"failed": 1, "passed": 1}, done.stderr


@pytest.mark.parametrize("text, says", [("import nothing_of_that_name", "exit status 2"), ("", "no test ran")])
def test_a_file_without_tests_is_an_error(tmp_path, text, says):
    done, _, last = run_file(tmp_path, text)
    assert done.returncode == 1 and says in done.stderr and last["tests"] == {}


@pytest.mark.slow
def test_crashes_without_end_are_given_up(tmp_path):
    text = "import os, pytest\n@pytest.mark.parametrize('i', range(60))\ndef test_it(i): os._exit(3)\n"
    done, found, _ = run_file(tmp_path, text)
    assert len(found) == run_tests.MOST_PROCESSES and "ended early" in done.stderr


def test_a_runner_that_is_ended_leaves_nothing_running(tmp_path):
    """As a limit of time of the machine ends it."""
    (tmp_path / "test_it.py").write_text(
        f"import os, time\ndef test_it():\n    open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
        "    time.sleep(600)\n"
    )
    program = tmp_path / "program.py"
    program.write_text(f"""
import pathlib, signal, sys, time
from check_device.results import Results
from check_device.runner import Check, Runner
signal.signal(signal.SIGTERM, signal.default_int_handler)
folder = pathlib.Path({str(tmp_path)!r})
command = [sys.executable, "-m", "check_device.run_tests", "--kept", folder / "kept", folder / "test_it.py"]
Runner(Results(folder, "A"), time.monotonic() + 300).run([Check("tests", command, 200)])
""")
    env = os.environ | {"PYTHONPATH": str(ROOT / "tools")}
    process = subprocess.Popen([sys.executable, program], env=env, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    pid = int((tmp_path / "pid").read_text())
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) != 0
    deadline = time.monotonic() + 20
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(pid)
    assert not Results(tmp_path, "A").statuses()  # it will run again


def test_lines_of_the_benchmark(monkeypatch, capsys):
    """Figures are printed as they come, before a child that crashes after them is reported."""
    program = benchmark()
    measured = {
        "holon": [["copy float32", 1.0, 8.0, "B/s"], ["add float32", 2.0, 8.0, "B/s"], ["AdamW step", 0.5, 1, "s"]],
        "torch": [["add float32", 3.0, 8.0, "B/s"], ["AdamW step, fused AdamW", 0.25, 1, "s"]],
    }

    def figures(python, module, group, smoke, env):
        yield from measured[module]
        if module == "torch":
            raise RuntimeError("torch crashed")

    monkeypatch.setattr(program, "figures", figures)
    monkeypatch.setattr(program, "torch_has_cuda", lambda python: True)
    monkeypatch.setenv("HOLON_BENCH_TORCH_PYTHON", sys.executable)
    with pytest.raises(RuntimeError, match="torch crashed"):
        program.measure("memory", "NVIDIA H200", False, {})
    lines = [tuple(json.loads(line).values()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ("cuda copy float32", 8.0, "B/s", None, None),
        ("cuda add float32", 4.0, "B/s", "copy in the same run", 0.5),
        ("cuda AdamW step", 0.5, "s", None, None),
        ("cuda add float32", 4.0, "B/s", "PyTorch", 1.5),
        ("cuda AdamW step", 0.5, "s", "PyTorch, fused AdamW", 0.5),
    ]
    program.against_device("NVIDIA H200", ["matmul tf32 8192", 1.0, 99e12, "FLOP/s"], None)
    assert json.loads(capsys.readouterr().out)["ratio"] == 0.2
