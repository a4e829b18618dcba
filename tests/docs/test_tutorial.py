"""docs/tutorial.ipynb: its cells print what is stored with them, and run unchanged, without their magics,
under the launcher."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from harness.ranks import environment

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/tutorial.ipynb").read_text()
CELLS = [cell for cell in json.loads(TEXT)["cells"] if cell["cell_type"] == "code"]


def text(lines):
    return lines if isinstance(lines, str) else "".join(lines)


def printed(outputs):
    return "".join(text(o["text"]) for o in outputs if o["output_type"] == "stream" and o["name"] == "stdout")


def drawn(outputs):
    return [o for o in outputs if "text/html" in o.get("data", {})]


def without_magics(source):
    return "\n".join(line for line in text(source).splitlines() if not line.startswith("%"))


@pytest.mark.slow
def test_a_kernel_shows_what_is_stored():
    nbformat = pytest.importorskip("nbformat", reason="needs nbformat, nbclient and ipykernel")
    client = pytest.importorskip("nbclient", reason="needs nbformat, nbclient and ipykernel")
    pytest.importorskip("ipykernel", reason="needs nbformat, nbclient and ipykernel")
    stored, ran = (nbformat.reads(TEXT, as_version=4) for _ in range(2))
    client.NotebookClient(ran, timeout=250, startup_timeout=250, kernel_name="python3").execute()
    for before, after in zip(stored.cells, ran.cells):
        if before.cell_type == "code":
            assert printed(after.outputs) == printed(before.outputs), after.source
            assert len(drawn(after.outputs)) == len(drawn(before.outputs)), after.source
            assert all("<svg" in text(o["data"]["text/html"]) for o in drawn(after.outputs))


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
