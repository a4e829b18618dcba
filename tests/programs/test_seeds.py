"""The specification's own programs, unmodified, by the runner that comes with them; it starts ranks by hand and by the launcher."""
import re
import subprocess
import sys
from pathlib import Path

import pytest

RUNNER = next((p / "shared" / "seeds" / "run" for p in Path(__file__).resolve().parents if (p / "shared" / "seeds" / "run").exists()), None)

PROGRAMS = [
    "000_1_local", "000_2_data_parallel", "000_3_model_parallel", "000_4_pipeline", "000_5_mixed_eager", "000_6_mixed_graph", "001_2_data_parallel",
    "001_4_pipeline_from_local", "002_1_mixed_parallelism_mlp", "002_2_mixed_parallelism_lenet", "004_1_randn_global", "004_2_local_to_global",
    "004_3_to_local", "004_4_split_to_broadcast", "004_5_matmul_sbp"]
SLOW = ["002_2_mixed_parallelism_lenet"]


@pytest.mark.skipif(RUNNER is None, reason="no folder shared/seeds above this repository: the specification's programs are not here")
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in PROGRAMS])
def test_program(name):
    done = subprocess.run([sys.executable, RUNNER, "--python", sys.executable, "--only", name], capture_output=True, text=True)
    assert re.search(r"^1/1 programs pass$", done.stdout, re.M), done.stdout + done.stderr
