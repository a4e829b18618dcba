"""The table of ops, devices and dtypes (tools/generate_support.py): it has every op, and says what the ops do."""

import re
import subprocess
import sys

import pytest
from harness.ranks import ROOT, environment

import holon as flow
from holon import _C

sys.path.insert(0, str(ROOT / "tools"))
import generate_support  # noqa: E402

HEAD = ["bool", "u8", "i8", "i32", "i64", "f16", "bf16", "f32", "f64"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """(the page's text, {op: [{dtype: cell}]})"""
    folder = tmp_path_factory.mktemp("support")
    command = [sys.executable, ROOT / "tools/generate_support.py", folder]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    page = (folder / "support.md").read_text()
    table = {}
    for line in page[page.index("| op |") :].splitlines()[2:]:
        name, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        table.setdefault(re.match(r"\[?(\w+)", name).group(1), []).append(dict(zip(HEAD, cells, strict=True)))
    return page, table


def test_every_op_is_told(written):
    page, table = written
    names = {op["public_name"] for op in _C.op_table() if op["function"] or op["method"]}
    assert set(table) == names
    assert {cell for rows in table.values() for row in rows for cell in row.values()} <= {"", "cpu", "copies", "cuda"}


def test_known_cells(written):
    _, table = written
    assert table["linear"][0]["f32"] == "cuda" and table["linear"][0]["bf16"] == "cuda"
    assert table["relu"][0]["f32"] == "cuda"
    assert not any(row[name] for row in table["softmax"][:1] for name in ("bool", "u8", "i8", "i32", "i64"))
    indices = next(row for row in table["embedding"] if row["i64"] and not row["f32"])
    assert (indices["i32"], indices["i64"]) == ("cuda", "cuda")
    assert table["pin_memory"][0]["f32"] == "cpu"


def test_outcomes(monkeypatch):
    runs = {}
    monkeypatch.setattr(generate_support._C, "host_runs", lambda: dict(runs))

    def refused():
        raise TypeError("no")

    assert generate_support.outcome(lambda: None) == "cuda"
    assert generate_support.outcome(lambda: runs.update(add=1)) == "copies"
    assert generate_support.outcome(lambda: None) == "cuda"
    assert generate_support.outcome(refused) == ""
    assert generate_support.cell(lambda: None, refused) == "cpu" and generate_support.cell(refused, refused) == ""
    with pytest.raises(ValueError, match="not on the CPU"):
        generate_support.cell(refused, lambda: None)


def test_a_cell_is_what_a_call_does(written):
    """softmax of each dtype, called here."""
    _, table = written
    for name, short in zip(
        ("float16", "bfloat16", "float32", "float64", "int32"), ("f16", "bf16", "f32", "f64", "i32")
    ):
        before = dict(_C.host_runs())
        try:
            flow.softmax(flow.ones(2, 3).to(getattr(flow, name)).to("cuda"), 1)
        except (TypeError, RuntimeError):
            assert table["softmax"][0][short] in ("", "cpu")
            continue
        staged = dict(_C.host_runs()) != before
        assert table["softmax"][0][short] == ("copies" if staged else "cuda"), name
