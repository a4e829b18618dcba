"""A bounded run of the fuzzer, the same calls every time; ./dev test --asan runs others for longer."""

import subprocess
import sys
from pathlib import Path

from harness.ranks import environment


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
