"""What users' own ops and functions are checked for: planted faults are found and named, and sound ones pass."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from harness.ranks import environment
from holon.utils import cpp_extension
from holon.utils.conformance import check_function, check_op

import holon as flow


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("library")
    cpp_extension.load("faulty", Path(__file__).parent / "library/faulty.cpp", build_directory=folder)
    return next(folder.glob("faulty-*.so"))


# Of each op the only kind of fault that there is, and how often others may tell of it, too.
FAULTS = {
    "step_in_row": [r"the rule is wrong: S\(1\) -> S\(1\) on 2 ranks: output 0: element \d+ is"],
    "plus_one": [r"the rule is wrong: P\(sum\) -> P\(sum\)|the rule is wrong: P -> P"],
    "halved_rows": [r"the rule lacks S\(1\) -> S\(1\)", r"the rule lacks P"],
    "wrong_square": [r"the gradient of input 0, element 0: .*, but differences give"],
}


@pytest.mark.parametrize("op", FAULTS)
def test_a_planted_fault_is_named(built, op):
    report = check_op(op)
    assert report.samples and report.faults
    for fault in FAULTS[op]:
        assert any(re.search(fault, f) for f in report.faults), str(report)
    assert all(f.startswith(op + " [") for f in report.faults)


@pytest.mark.parametrize("op", ["right_square", "matmul", "softmax", "gather", "where"])
def test_sound_ops_pass(built, op):
    report = check_op(op)
    assert report.samples and report.worlds == 5 * report.samples, str(report)
    assert not report.faults, str(report)
    assert report.gradients


def test_samples_are_read(built):
    report = check_op("right_square", ["right_square [7, 3](0.5, 2); scale=4.5", "right_square float64[5, 2]"])
    assert (report.samples, report.gradients, report.faults) == (2, 2, [])
    for sample, message in {
        "right_square": "right_square takes 1 tensors, 0 are given",
        "right_square [5": r'"\]" is missing',
        "right_square [5, 2]; scale=x": '"x" does not read as a number',
        "right_square [5, 2]; top=3": 'right_square has no attribute "top"',
        "right_square quad[5, 2]": 'there is no dtype "quad"',
        "right_square [5, 2](2, 1)": r"the range \(2, 1\) is empty",
        "right_circle [5, 2]": 'there is no op "right_circle"',
        "matmul [5, 3] [3, 5]": "is not one of right_square",
    }.items():
        with pytest.raises(ValueError, match=message):
            check_op("right_square", [sample])
    with pytest.raises(ValueError, match='no op "right_circle"'):
        check_op("right_circle")
    report = check_op("right_square", ["right_square [5]"])
    assert "the call on local tensors fails" in report.faults[-1] and "x is no matrix" in str(report)


class Softmax(flow.autograd.Function):
    sharding_rule = "... K -> ... K"

    @staticmethod
    def forward(ctx, x):
        e = np.exp(x.numpy() - x.numpy().max(-1, keepdims=True))
        ctx.y = e / e.sum(-1, keepdims=True)
        return flow.tensor(ctx.y)

    @staticmethod
    def backward(ctx, dy):
        dy = dy.numpy()
        return flow.tensor(ctx.y * (dy - (dy * ctx.y).sum(-1, keepdims=True)))


class DividedSoftmax(Softmax):
    sharding_rule = "... k -> ... k"


class FlatSoftmax(Softmax):
    @staticmethod
    def backward(ctx, dy):
        return flow.tensor(ctx.y * dy.numpy())


def test_functions_with_a_sharding_rule():
    sound = check_function(lambda x: Softmax.apply(x), "[4, 6]")
    assert not sound.faults and sound.gradients == 1 and sound.worlds == 5, str(sound)
    divided = check_function(lambda x: DividedSoftmax.apply(x), "[4, 6]")
    assert any("on two ranks, with inputs as S(1): output 0 as S(1): element" in f for f in divided.faults), str(
        divided
    )
    flat = check_function(lambda x: FlatSoftmax.apply(x), "[4, 6]")
    assert any("the gradient of input 0" in f for f in flat.faults), str(flat)
    with pytest.raises(TypeError, match="check_function: takes a function of tensors"):
        check_function(3, "[4]")


def test_the_command(built):
    def holon(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "holon", "check-op", *map(str, arguments)],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=240,
        )

    done = holon(built, "--op", "wrong_square", "--op", "right_square")
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"wrong_square: \d+ faults; 2 samples", done.stdout) and "right_square: sound" in done.stdout
    done = holon(built, "--sample", "right_square [5, 3]; scale=2.5", "--op", "right_square")
    assert done.returncode == 0 and "right_square: sound; 1 samples" in done.stdout, done.stdout + done.stderr
    assert not done.stderr
    assert holon("nowhere.so").returncode == 2
