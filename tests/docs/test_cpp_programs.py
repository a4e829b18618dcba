"""The ten small programs that benchmarks/programs.py compares with libtorch's: they compile without a warning, print
what they should, and are as short as libtorch's."""

import subprocess

import pytest
from harness import cpp, ranks

ROOT = ranks.ROOT
PROGRAMS = ROOT / "benchmarks/programs"
PRINTED = {
    "checkpoint": "7 1\n",
    "convolution": "[2, 10]\n",
    "dataloader": "[4, 2] [4]\n[4, 2] [4]\n[2, 2] [2]\n",
    "gradient": "36 tensor([ 3., 12., 27.], dtype=holon.float32)\n",
    "hello": "tensor([[1.5000, 1.5000, 1.5000, 1.5000],\n"
    "        [1.5000, 1.5000, 1.5000, 1.5000]], dtype=holon.float32)\n",
    "indexing": "tensor([5, 6], dtype=holon.int64)\n"
    "tensor([[ 0,  2],\n        [ 4,  6],\n        [ 8, 10]], dtype=holon.int64)\n"
    "tensor([ 9, 10, 11], dtype=holon.int64)\n"
    "tensor([[-1, -1, -1, -1],\n        [ 4,  5,  6,  7],\n        [ 8,  9, 10, 11]], dtype=holon.int64)\n4.66667\n",
    "lstm": "[5, 2, 16]\n",
    "module": "up.weight [16, 4]\nup.bias [16]\ndown.weight [2, 16]\ndown.bias [2]\n[3, 2]\n",
}


def lines(path):
    return [line for line in path.read_text().splitlines() if line.strip()]


def test_all_are_here():
    names = {p.name for p in (PROGRAMS / "holon").iterdir()}
    assert names == {p.name for p in (PROGRAMS / "torch").iterdir()} and len(names) == 10


@pytest.mark.parametrize("source", sorted((PROGRAMS / "holon").glob("*.cpp")), ids=lambda p: p.stem)
def test_program(source, tmp_path):
    program = tmp_path / "program"
    done = cpp.compiled(source, program, *cpp.WARNINGS, "-Wpedantic", "-Werror")
    assert done.returncode == 0, done.stderr
    done = subprocess.run([program], cwd=tmp_path, env=ranks.environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    if source.stem == "regression":
        assert [abs(float(v) - want) < 0.01 for v, want in zip(done.stdout.split(), (3, 2), strict=True)] == [
            True,
            True,
        ]
    elif source.stem == "classifier":
        assert float(done.stdout) > 0.95
    else:
        assert done.stdout == PRINTED[source.stem]
    assert len(lines(source)) <= len(lines(PROGRAMS / "torch" / source.name))
