"""docs/benchmarks.md shows what is in benchmarks/results, and `./dev bench --save` writes such files."""

import json
import subprocess
import sys

import pytest
from harness.ranks import ROOT, environment

sys.path.insert(0, str(ROOT / "tools"))
import generate_benchmarks  # noqa: E402


def test_the_page_shows_the_files():
    page = (ROOT / "docs/benchmarks.md").read_text()
    assert generate_benchmarks.updated(page) == page, "run tools/generate_benchmarks.py"


def test_a_run_is_saved(tmp_path):
    file = tmp_path / "results.jsonl"
    command = [sys.executable, ROOT / "benchmarks/run.py", "--save", file, "size"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    machine, *rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert machine["command"] == "./dev bench size" and machine["cores"] > 0
    assert rows == [json.loads(line) for line in done.stdout.splitlines()] and rows[0]["unit"] == "MiB"
    page = "# A page\n<!-- begin results.jsonl -->\nold\n<!-- end -->\nwords\n"
    text = generate_benchmarks.updated(page, tmp_path)
    assert (
        f"| {rows[0]['name']} | " in text
        and machine["commit"] in text
        and "old" not in text
        and text.endswith("words\n")
    )
    assert generate_benchmarks.updated(text, tmp_path) == text


def test_faults_are_told(tmp_path):
    with pytest.raises(FileNotFoundError, match="--save gone.jsonl"):
        generate_benchmarks.updated("<!-- begin gone.jsonl -->\n<!-- end -->", tmp_path)
    with pytest.raises(ValueError, match="no table"):
        generate_benchmarks.updated("words")
    command = [sys.executable, ROOT / "benchmarks/run.py", "--save", tmp_path / "no/file", "size"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "there is no folder" in done.stderr
