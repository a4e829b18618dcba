"""The declarations as data, and the one reader of sources, which writes the C++ functions before there is a library."""

import json
import re
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


def comment_above(header, declaration):
    """The comment directly above a declaration of a header, in one line."""
    lines = header[: header.index(declaration)].splitlines()
    first = len(lines)
    while lines[first - 1].startswith("//"):
        first -= 1
    return " ".join(line.removeprefix("// ") for line in lines[first:])


def test_the_header_documents_every_op(table):
    generated = ROOT / "build/dev/generated/holon"
    public, internal = ("".join(p.read_text() for p in (generated / n).glob("*.h")) for n in ("ops", "internal_ops"))
    for source in sorted((ROOT / "holon/ops").glob("*.cpp")):
        for schema, body in generate_ops.declarations(source.read_text()):
            op = generate_ops.Op.read(schema, body)
            row = table[op.name]
            if row["function"] or row["method"]:
                assert not op.hidden, op.name
            if not row["cpp_function"]:
                continue
            assert f" {op.cpp}({op.params(True)});\n" in (internal if op.hidden else public), op.name
            if op.hidden:
                assert op.function() not in public, op.name
                continue
            words = comment_above(public, op.function())
            assert words.startswith(generate_ops.in_cpp(row["doc"].partition(" Errors:")[0])), op.name
            assert not re.search(r"\b(True|False|None|\w+Error)\b", words), f"{op.name}: Python's words: {words}"


@pytest.mark.parametrize(
    "declared, words",
    [
        ('HOLON_OP(f, "f(Tensor x) -> Tensor").doc("Of x.", "f(ones(2))")', "Of x."),
        ('HOLON_OP(f, "f(Tensor x) -> Tensor").doc("Of "\n"x.").elementwise()', "Of x. The result has the shape of x."),
        (
            'HOLON_OP(f, "f(Tensor x) -> Tensor").doc("If on=True. Errors: an index (IndexError).")',
            "If .on = true. Errors: an index (ErrorKind::kIndex).",
        ),
        (
            'HOLON_OP(f, "f(Tensor x) -> Tensor").doc("Of x.").infer([](Infer& c) { c.require(c.ndim(0) > 0, "x has no '
            'axis", "Give it one."); if (y) fail_value("f: the size is odd: {}.", n); })',
            "Of x. Errors: x has no axis; the size is odd.",
        ),
        ('HOLON_UNARY(f, F, kSame).doc("-x.", "f(ones(2))")', "-x. The result has the shape of x."),
    ],
)
def test_what_a_declaration_tells(declared, words):
    ((schema, body),) = generate_ops.declarations(declared)
    assert generate_ops.Op.read(schema, body).doc == words


def test_the_forms_of_a_binary_op():
    declared = 'HOLON_BINARY(f, F, kSame, .doc("x f other.", "f(ones(2))"), .doc("x f value."));'
    tensor, scalar = (generate_ops.Op.read(*d) for d in generate_ops.declarations(declared))
    assert tensor.doc == "x f other. The tensors broadcast to one shape."
    assert (scalar.name, scalar.doc) == ("f_scalar", "x f value. The result has the shape of x.")


def test_a_hidden_op_that_is_public_in_place():
    schema = "f_fill(Tensor x) -> Tensor"
    op = generate_ops.Op.read(schema, '.doc("Fills x.").in_place("f_").hidden()')
    assert op.public_declaration() == "// Fills x.\nTensor f_(Tensor x);\n"
    assert generate_ops.Op.read(schema, '.doc("Fills x.").hidden()').public_declaration() == ""


def test_a_library_that_is_none():
    done = subprocess.run([TOOL, "no_such_library.so"], text=True, capture_output=True)
    assert done.returncode == 1 and "there is no file" in done.stderr
