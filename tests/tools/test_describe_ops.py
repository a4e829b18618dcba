"""The declarations as data, and the one reader of sources, which writes the C++ functions before there is a library."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holon import _C

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import generate_ops  # noqa: E402

TOOL = ROOT / "build/dev/bin/holon-describe-ops"


@pytest.fixture(scope="module")
def table():
    return {row["name"]: row for row in json.loads(subprocess.check_output([TOOL], text=True))}


def test_the_program_and_python_say_the_same(table):
    # Python may have loaded libraries of ops in other tests of this process.
    assert table.items() <= {row["name"]: row for row in _C.op_table()}.items()


def test_the_generator_reads_what_the_library_has(table):
    read = {}
    for source in sorted((ROOT / "holon/ops").glob("*.cpp")):
        for schema, body in generate_ops.declarations(source.read_text()):
            op = generate_ops.Op.read(schema, body)
            read[op.name] = (op, schema)
            assert table[op.name]["family"] == source.stem
            assert table[op.name]["cpp_function"] == (".python_only()" not in body)
    assert read.keys() == table.keys()
    for name, (op, schema) in read.items():
        row = table[name]
        assert " ".join(schema.split()) == " ".join(row["schema"].split())
        assert (op.public, op.outputs, op.output_names) == (row["public_name"], row["n_outputs"], row["output_names"])
        assert [(a.name, a.keyword, a.optional) for a in op.args] == [
            (a["name"], a["keyword_only"], a["optional"]) for a in row["args"]
        ], name
        # An op that is bound under one in-place name alone, or has several outputs, has no second function.
        assert op.in_place == (row["in_place"] and row["n_outputs"] == 1), name
        described = generate_ops.Op.described(row)
        assert op.declaration() == described.declaration()
        assert op.definition() == described.definition()


def test_a_library_that_is_none():
    done = subprocess.run([TOOL, "no_such_library.so"], text=True, capture_output=True)
    assert done.returncode == 1 and "there is no file" in done.stderr
