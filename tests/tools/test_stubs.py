"""The type stubs of the extension are what tools/generate_stubs.py makes of it."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from holon import _C

ROOT = Path(__file__).resolve().parents[2]
STUBS = ROOT / "python/holon/_C.pyi"


def members(body):
    """name -> nodes: functions have one for each overload."""
    found = {}
    for node in body:
        if isinstance(node, ast.AnnAssign):
            found.setdefault(node.target.id, []).append(node)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.setdefault(node.name, []).append(node)
    return found


@pytest.fixture(scope="module")
def stubs():
    return members(ast.parse(STUBS.read_text()).body)


def test_the_committed_file_is_the_generators(tmp_path):
    # In a process of its own: other tests load libraries of ops.
    made = tmp_path / "_C.pyi"
    subprocess.run([sys.executable, ROOT / "tools/generate_stubs.py", _C.__file__, made], check=True)
    assert made.read_text() == STUBS.read_text()


# Names of the module and of Tensor, to which the package adds functions of Python's and hidden ops.
NAMES = """
import json, types
from holon import _C
others = (_C.OpFunction, types.FunctionType)
own = [n for n, value in vars(_C.Tensor).items() if not n.startswith("_") and not isinstance(value, others)]
print(json.dumps([list(vars(_C)), own]))
"""


def test_every_public_name_is_there(stubs):
    # In a process of its own: what other tests import, such as oneflow, adds to Tensor.
    module, own = json.loads(subprocess.check_output([sys.executable, "-c", NAMES], text=True))
    missing = [n for n in module if not n.startswith("_") and n not in stubs and n != "unpickle"]
    assert not missing
    assert not [n for n in stubs if not n.startswith("_") and n not in module and n != "Number"]
    tensor = members(stubs["Tensor"][0].body)
    assert {"shape", "grad", "numpy", "backward"} <= set(own)
    assert not [n for n in own if n not in tensor]
    assert {"__add__", "__rsub__", "__imul__", "__matmul__", "__lt__", "__getitem__", "__iter__"} <= tensor.keys()


@pytest.mark.parametrize(
    "name, text",
    [
        ("part_rows", "(size: _int, placement: _placement, sbp: _Sbp) -> tuple[_int, _int]"),
        ("parse_dtype", "(dtype: Any) -> _dtype"),
        ("run_ranks", "(n: _int, fn: Callable[[_int], Any]) -> list[Any]"),
        ("boxing_counters", "() -> dict[str, _int]"),
    ],
)
def test_types_that_the_extension_names(stubs, name, text):
    (node,) = stubs[name]
    assert f"({ast.unparse(node.args)}) -> {ast.unparse(node.returns)}" == text


def test_forms_of_one_name_are_overloads(stubs):
    tensor = members(stubs["Tensor"][0].body)
    for name in ("size", "max"):
        assert len(tensor[name]) > 1
        assert all(ast.unparse(d) == "overload" for node in tensor[name] for d in node.decorator_list)
    assert {ast.unparse(node.returns) for node in tensor["size"]} == {"Size", "_int"}


def test_properties_have_the_types_of_their_docs(stubs):
    tensor = members(stubs["Tensor"][0].body)
    assert ast.unparse(tensor["shape"][0].annotation) == "Size"
    assert ast.unparse(tensor["grad"][0].annotation) == "Tensor | None"
    assert _C.Tensor.grad.__doc__.startswith("Tensor | None: ")
