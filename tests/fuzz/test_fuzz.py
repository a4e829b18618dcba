"""A bounded run of the fuzzer, the same calls every time; ./dev test --asan runs others for longer."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness.ranks import ROOT, environment


def run(tmp_path, script, *options):
    log = tmp_path / "call"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__).parent / script), *options],
        env=environment(HOLON_FUZZ_LOG=log, HOLON_COMM_TIMEOUT_S=30),
        capture_output=True,
        text=True,
        timeout=280,
    )
    last = log.read_text() if log.exists() else "none"
    assert done.returncode == 0, f"{done.stdout}{done.stderr[-3000:]}\nlast call: {last}"


def test_every_op_takes_or_refuses_what_it_is_given(tmp_path):
    run(tmp_path, "fuzz_ops.py", "--calls", "20000", "--seconds", "120")


def test_every_op_takes_or_refuses_integers_at_their_ends(tmp_path):
    run(tmp_path, "extreme_ints.py")


def fuzzes(compiler, folder):
    """Whether the compiler has libFuzzer's run time."""
    source = 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }'
    (folder / "empty.cpp").write_text(source)
    command = [compiler, "-fsanitize=fuzzer,address", folder / "empty.cpp", "-o", folder / "empty"]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_readers_of_files_under_libfuzzer(tmp_path):
    compiler = shutil.which("clang++") or shutil.which("clang++-14")
    if not compiler or not fuzzes(compiler, tmp_path):
        pytest.skip("needs Clang with libFuzzer (packages clang and libclang-rt-14-dev)")
    run = subprocess.run(
        [sys.executable, ROOT / "tests/fuzz/libfuzzer.py", "--seconds", "12"], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr[-4000:]
    assert run.stdout.count(" edges, ") == 5, run.stdout
