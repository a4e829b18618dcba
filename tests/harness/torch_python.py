"""The Python that has torch and transformers: $HOLON_BENCH_TORCH_PYTHON, or the one that runs the tests."""

import importlib.util
import os
import subprocess
import sys

import pytest


def torch_python():
    """None if there is none."""
    if named := os.environ.get("HOLON_BENCH_TORCH_PYTHON"):
        return named
    return sys.executable if importlib.util.find_spec("transformers") and importlib.util.find_spec("torch") else None


def require_torch():
    if torch_python() is None:
        pytest.skip("there is no torch with transformers: HOLON_BENCH_TORCH_PYTHON names a Python that has them")


def run_torch(program, *arguments):
    command = [torch_python(), program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
