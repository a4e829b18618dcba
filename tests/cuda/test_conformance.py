"""The ops' conformance table (tests/cpp/ops) on cuda placements:
every op, every layout, values and gradients equal the CPU's local ones."""

import os
import subprocess

import pytest
from harness import ranks

import holon as flow

# Of the larger worlds a part of the table ("9/16": each sixteenth case, from number 9 on); the whole takes minutes:
# HOLON_TEST_CASES= HOLON_TEST_DEVICE=cuda build/dev/tests/ops_test --gtest_filter='Worlds/*/2x2_ranks'
WORLDS = {"one_rank": "", "two_ranks": "", "two_of_three_ranks": "", "three_ranks": "0/8", "2x2_ranks": "9/16"}
# Where ranks share a device, all that they exchange goes through the host.
SHARED = {"one_rank": "", "two_ranks": "0/4", "two_of_three_ranks": "0/4", "three_ranks": "0/32", "2x2_ranks": "9/64"}


@pytest.mark.parametrize("world", WORLDS)
def test_table(world):
    shared = "emulated" not in os.environ.get("HOLON_CUDA_LIBRARY", "") and flow.cuda.device_count() < 4
    program = ranks.ROOT / "build/dev/tests/ops_test"
    command = [str(program), f"--gtest_filter=Worlds/Conformance.GlobalEqualsLocal/{world}"]
    env = ranks.environment(
        HOLON_TEST_DEVICE="cuda",
        HOLON_TEST_VERBOSE="1",
        HOLON_MACHINE_COSTS="fixed",
        EMULATED_DEVICES="4",
        EMULATED_STRICT=str(int(world == "one_rank")),
        HOLON_TEST_CASES=(SHARED if shared else WORLDS)[world],
    )
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\nthe last case begun: {done.stderr.splitlines()[-3:]}"
    assert "[  PASSED  ] 1 test." in done.stdout
