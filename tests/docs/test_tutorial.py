"""docs/tutorial/python.ipynb: its cells print what is stored with them, and run unchanged, without their magics,
under the launcher."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from harness import notebook
from harness.notebook import printed, text
from harness.ranks import environment

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/tutorial/python.ipynb").read_text()
CELLS = [cell for cell in json.loads(TEXT)["cells"] if cell["cell_type"] == "code"]


def without_magics(source):
    return "\n".join(line for line in text(source).splitlines() if not line.startswith("%"))


@pytest.mark.slow
def test_a_kernel_shows_what_is_stored():
    for name in ("nbformat", "nbclient", "ipykernel"):
        pytest.importorskip(name, reason="needs nbformat, nbclient and ipykernel")
    notebook.check(ROOT / "docs/tutorial/python.ipynb")


@pytest.mark.slow
def test_the_cells_are_a_program_under_the_launcher(tmp_path):
    program = tmp_path / "tutorial.py"
    program.write_text("\n\n".join(without_magics(cell["source"]) for cell in CELLS))
    done = subprocess.run(
        [sys.executable, "-m", "holon.distributed.launch", "--nproc_per_node", "4", str(program)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shown = [line for cell in CELLS for line in printed(cell["outputs"]).splitlines() if not line.startswith("[rank")]
    assert len(shown) > 10
    for line in shown:
        assert line in done.stdout, line
