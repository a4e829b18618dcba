"""What `import holon` brings, and what it leaves out: a rank's start must stay short."""

import subprocess
import sys

import pytest

HEAVY = [
    "numpy",
    "rich",
    "threading",
    "pathlib",
    "inspect",
    "typing",
    "dataclasses",
    "asyncio",
    "subprocess",
    "holon.nn",
    "holon.optim",
]


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_import_brings_nothing_heavy():
    assert run(f"import sys, holon; print([m for m in {HEAVY} if m in sys.modules])") == "[]"


@pytest.mark.parametrize(
    "name",
    [
        "Tensor",
        "tensor",
        "from_numpy",
        "Size",
        "dtype",
        "device",
        "placement",
        "sbp",
        "float32",
        "float",
        "long",
        "bool",
        "matmul",
        "randn",
        "cat",
        "no_grad",
        "enable_grad",
        "set_grad_enabled",
        "inference_mode",
        "is_grad_enabled",
        "manual_seed",
        "is_tensor",
        "run_ranks",
        "explain",
        "visualize",
        "boxing_policy",
        "set_printoptions",
        "ops",
        "nn",
        "optim",
        "autograd",
        "env",
        "comm",
        "distributed",
    ],
)
def test_name(name):
    import holon

    assert getattr(holon, name) is not None
    assert name in dir(holon)


def test_missing_name_is_helped():
    import holon

    with pytest.raises(AttributeError, match="holon has no 'matmull'. Did you mean matmul"):
        holon.matmull  # noqa: B018
    with pytest.raises(AttributeError, match=r"holon\.ops\(\)"):
        holon.qqqq  # noqa: B018
    with pytest.raises(AttributeError, match="nn has no 'Lineal'"):
        holon.nn.Lineal  # noqa: B018
    assert not hasattr(holon, "__nothing__")


def test_oneflow_is_holon():
    code = """
import oneflow as flow, oneflow.nn as nn, oneflow.nn.functional as F, holon
from oneflow import optim
print(flow.Tensor is holon.Tensor, nn.Linear is holon.nn.Linear, F is holon.nn.functional, end=" ")
print(optim is holon.optim, nn.__name__, nn.__spec__.name)
print(flow.float32, flow.ones(2).shape)
"""
    assert run(code) == "True True True True oneflow.nn oneflow.nn\noneflow.float32 oneflow.Size([2])"
