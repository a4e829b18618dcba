"""Ranks that another engine has started find each other: Open MPI's mpirun, SLURM's srun."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness.ranks import environment

sys.path.insert(0, str(Path(__file__).parent))
from namespaces import Hosts, missing  # noqa: E402

PROGRAM = """
import holon as flow
world = flow.env.get_world_size()
p = flow.placement("cpu", ranks=list(range(world)))
total = flow.ones(2).to_global(p, flow.sbp.partial_sum).to_global(p, flow.sbp.broadcast).numpy()[0]
print(f"rank {flow.env.get_rank()} of {world}, local {flow.env.get_local_rank()}: {total:g}\\n", end="", flush=True)
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def said(text):
    return sorted(line for line in text.splitlines() if line.startswith("rank"))


@pytest.mark.one_network
@pytest.mark.skipif(not shutil.which("mpirun"), reason="needs Open MPI's mpirun (package openmpi-bin)")
def test_mpirun(program):
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3", sys.executable, program]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert said(done.stdout) == [f"rank {r} of 3, local {r}: 3" for r in range(3)]


# What Open MPI 4 and SLURM 22 set, but for the many variables that are of no use here.
def of_mpirun(rank, size):
    return {
        "OMPI_COMM_WORLD_RANK": rank,
        "OMPI_COMM_WORLD_SIZE": size,
        "OMPI_COMM_WORLD_LOCAL_RANK": rank,
        "OMPI_COMM_WORLD_LOCAL_SIZE": size,
        "PMIX_NAMESPACE": "2718281828",
    }


def of_srun(rank, size, per_node, nodes):
    return {
        "SLURM_JOB_ID": 314159,
        "SLURM_STEP_ID": 0,
        "SLURM_PROCID": rank,
        "SLURM_STEP_NUM_TASKS": size,
        "SLURM_NTASKS": size,
        "SLURM_LOCALID": rank % per_node,
        "SLURM_NODEID": rank // per_node,
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_TASKS_PER_NODE": f"{per_node}(x{size // per_node})",
    }


def start(command, variables, wrap=lambda rank, command: command):
    ranks = [
        subprocess.Popen(
            wrap(r, command), env=environment(**v), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for r, v in enumerate(variables)
    ]
    try:
        outputs = [p.communicate(timeout=60)[0] for p in ranks]
    finally:
        for p in ranks:
            p.kill()
    assert [p.returncode for p in ranks] == [0] * len(ranks), outputs
    return said("".join(outputs))


@pytest.mark.one_network
def test_variables_of_mpirun(program):
    assert start([sys.executable, program], [of_mpirun(r, 2) for r in range(2)]) == [
        f"rank {r} of 2, local {r}: 2" for r in range(2)
    ]


@pytest.mark.one_network
def test_variables_of_srun(program):
    variables = [of_srun(r, 2, 2, "localhost") for r in range(2)]
    assert start([sys.executable, program], variables) == [f"rank {r} of 2, local {r}: 2" for r in range(2)]


@pytest.mark.one_network
def test_a_batch_script_is_no_rank(program):
    """Without srun there is one process, though SLURM says how many tasks the job has."""
    variables = {"SLURM_JOB_ID": 314159, "SLURM_PROCID": 0, "SLURM_NTASKS": 8, "SLURM_LOCALID": 0}
    assert start([sys.executable, program], [variables]) == ["rank 0 of 1, local 0: 1"]


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_srun_on_two_hosts(program):
    with Hosts(2) as hosts:
        variables = [of_srun(r, 4, 2, f"{hosts.address(0)},{hosts.address(1)}") for r in range(4)]
        lines = start([sys.executable, program], variables, wrap=lambda r, command: hosts.command(r // 2, command))
    assert lines == [f"rank {r} of 4, local {r % 2}: 4" for r in range(4)]
