"""Faults under the launcher: it ends by itself, says which rank failed first and why, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from harness.ports import free_port, is_free
from harness.ranks import environment

sys.path.insert(0, str(Path(__file__).parent))
from test_faults import processes_with  # noqa: E402

PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
import holon as flow
import programs

world = flow.placement.all("cpu")
flow.ones(3, placement=world, sbp=flow.sbp.split(0)).to_global(world, flow.sbp.broadcast)  # all are connected
open({ready!r} + str(flow.env.get_rank()), "w").close()
programs.run(7, 3, {steps}, {fault!r}, 1, {at})
"""


class Launched:
    def __init__(self, tmp_path, fault, ranks=3, **extra):
        program, self.ready = tmp_path / "program.py", tmp_path / "ready"
        program.write_text(
            PROGRAM.format(
                folder=str(Path(__file__).parent),
                ready=str(self.ready),
                fault=fault,
                steps=40 if fault else 10**6,
                at=10 if fault else None,
            )
        )
        self.mark, self.port = f"mark-{uuid.uuid4().hex}", free_port()
        command = [
            sys.executable,
            "-m",
            "holon.distributed.launch",
            "--nproc_per_node",
            str(ranks),
            "--master_port",
            str(self.port),
            str(program),
        ]
        self.start = time.monotonic()
        # A session of its own, as a terminal gives.
        self.process = subprocess.Popen(
            command,
            env=environment(HOLON_FAULTS_MARK=self.mark, **extra),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def wait(self, timeout=60):
        self.output, _ = self.process.communicate(timeout=timeout)
        return self.process.returncode

    def ranks(self):
        """The processes of the ranks, when they all run the program."""
        until = time.monotonic() + 100
        while time.monotonic() < until:
            found = {}
            for pid in processes_with(self.mark):
                try:
                    variables = dict(
                        x.split("=", 1) for x in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in x
                    )
                    rank = variables.get("RANK")
                    if rank and Path(f"{self.ready}{rank}").exists():
                        found[int(rank)] = pid
                except (OSError, UnicodeDecodeError):
                    pass
            if len(found) == 3:
                return found
            time.sleep(0.05)
        raise AssertionError("the ranks did not start")

    def assert_nothing_left(self):
        until = time.monotonic() + 5
        while (left := processes_with(self.mark)) and time.monotonic() < until:
            time.sleep(0.05)
        assert not left, [Path(f"/proc/{p}/cmdline").read_text() for p in left]
        assert is_free(self.port)


@pytest.mark.parametrize(
    "fault, status, says",
    [
        ("raise", 1, "rank 1 has failed: ValueError: the milk is sour (at "),
        ("exit 3", 3, "holon-launch: rank 1 failed: exit status 3"),
        ("kills itself", 128 + 9, "holon-launch: rank 1 failed: killed by signal 9"),
        ("sleep", 1, "Rank 1 sleeps at "),
        ("stop", 1, "Rank 1 is stopped"),
        ("shape", 1, "the ranks disagree on the call's arguments"),
    ],
)
def test_a_fault(tmp_path, fault, status, says):
    job = Launched(tmp_path, fault, HOLON_COMM_TIMEOUT_S=1)
    assert job.wait() == status, job.output
    assert says in job.output, job.output
    assert "programs.py" in job.output
    job.assert_nothing_left()


@pytest.mark.parametrize("victim", ["launcher", 0, 2])
def test_killed_from_outside(tmp_path, victim):
    job = Launched(tmp_path, None, HOLON_COMM_TIMEOUT_S=5)
    ranks = job.ranks()
    if victim == "launcher":
        job.process.kill()
        job.wait()
    else:
        os.kill(ranks[victim], signal.SIGKILL)
        assert job.wait() == 128 + 9, job.output
        assert f"holon-launch: rank {victim} failed: killed by signal 9" in job.output
        assert f"rank {victim} was killed or has crashed" in job.output
    job.assert_nothing_left()


def test_a_stopped_launcher_does_not_hold_up_errors(tmp_path):
    job = Launched(tmp_path, None, HOLON_COMM_TIMEOUT_S=2)
    ranks = job.ranks()
    job.process.send_signal(signal.SIGSTOP)
    os.kill(ranks[1], signal.SIGKILL)
    start, others = time.monotonic(), [ranks[0], ranks[2]]

    def ended(pid):
        return (
            not Path(f"/proc/{pid}").exists()
            or Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
        )

    while not all(ended(pid) for pid in others) and time.monotonic() - start < 60:
        time.sleep(0.02)
    assert all(ended(pid) for pid in others)
    job.process.send_signal(signal.SIGCONT)
    assert job.wait() != 0
    assert "rank 1 was killed or has crashed" in job.output
    job.assert_nothing_left()
