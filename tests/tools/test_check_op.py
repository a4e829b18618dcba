"""./dev op: the list of what an op has is complete, and says what is missing."""

import importlib
import subprocess
import sys

import pytest
from harness.ranks import ROOT

from holon import _C

sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests/python/ops")]

import check_op  # noqa: E402
import op_table  # noqa: E402

for file in sorted((ROOT / "tests/python/ops").glob("values_*.py")):
    importlib.import_module(file.stem)

OPS = {op["name"]: op for op in _C.op_table()}
RUNS = [([], {"float32": "cuda"})]


def missing(op, root=ROOT):
    return {what for what, found in check_op.checklist(op, op_table, RUNS, root) if check_op.lacks(found)}


def test_nothing_is_missing_of_any_op():
    assert len(OPS) > 400
    assert not {name: lacking for name, op in OPS.items() if (lacking := missing(op))}


def test_all_that_a_declaration_says_is_on_the_list():
    """What joins describe_ops() joins the list, or is left out of it on purpose."""

    class Read(dict):
        def __getitem__(self, key):
            read.add(key)
            return dict.__getitem__(self, key)

    read = set()
    check_op.checklist(Read(OPS["matmul"]), op_table, RUNS)
    assert set(OPS["matmul"]) - read == check_op.NOT_SHOWN - read
    assert set(OPS["matmul"]) <= read | check_op.NOT_SHOWN


@pytest.mark.parametrize(
    "change, lacking",
    [
        ({"doc": ""}, {"doc"}),
        ({"example": ""}, {"example"}),
        ({"rule": ""}, {"sharding rule"}),
        ({"public_name": "seventh_of"}, {"stubs", "values"}),
        ({"name": "seventh_of"}, {"samples"}),
        ({"doc": "", "example": "", "function": False, "method": False, "public_name": "seventh_of"}, set()),
    ],
)
def test_what_is_missing_is_found(change, lacking):
    assert missing(OPS["matmul"] | change) == lacking


def test_an_op_that_runs_nowhere_is_found():
    found = dict(check_op.checklist(OPS["matmul"], op_table, [([], {"float32": ""})]))
    assert check_op.lacks(found["kernels"])


@pytest.mark.slow
def test_the_command():
    done = subprocess.run(
        [sys.executable, ROOT / "tools/check_op.py", "matmul", "relu"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    text = done.stdout
    for words in (
        "matmul(Tensor x, Tensor w) -> Tensor",
        "... m k, ... k n -> ... m n, linear",
        "tests/cpp/ops/samples/matmul.cpp:",
        "autocast class      lower",
        "relu(Tensor x) -> Tensor",
    ):
        assert words in text, text
    wrong = subprocess.run([sys.executable, ROOT / "tools/check_op.py", "no_such"], capture_output=True, text=True)
    assert wrong.returncode == 1 and "no op 'no_such'" in wrong.stderr
