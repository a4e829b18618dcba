"""Every name that programs for OneFlow use is there, or tells what to use instead."""

import importlib
import subprocess
import sys

import oneflow as flow
import pytest
from harness.oneflow_names import NAMES, OPERATORS
from oneflow import missing


class Some(flow.nn.Graph):
    def build(self, x):
        return x


def owner(path):
    if path == "nn.Graph":
        return Some()
    if path == "config":
        return Some().config
    if path == "nn.graph.GraphModule":
        return flow.nn.Linear(1, 1).to(flow.nn.graph.GraphModule)
    found = flow
    for i, part in enumerate(filter(None, path.split("."))):
        try:
            found = getattr(found, part)
        except AttributeError:
            found = importlib.import_module("oneflow." + ".".join(path.split(".")[: i + 1]))
    return found


def find(path, name):
    found = owner(path)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def left_out(path, name):
    """The text that tells what to use instead of a name or of what it lies under, or None."""
    if path == "Tensor":
        return missing.TENSOR.get(name)
    if path == "nn.Graph":
        return missing.GRAPH.get(name)
    parts = (f"{path}.{name}" if path else name).split(".")
    return next(
        (missing.NAMES[".".join(parts[:n])] for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in missing.NAMES),
        None,
    )


ALL = [(path, name) for path, names in NAMES.items() for name in names]


@pytest.mark.parametrize("path, name", ALL, ids=[f"{p}.{n}" if p else n for p, n in ALL])
def test_name(path, name):
    text = left_out(path, name)
    if text is None:
        find(path, name)
        return
    with pytest.raises(AttributeError) as error:
        find(path, name)
    assert text in str(error.value)


@pytest.mark.parametrize("name", OPERATORS)
def test_operator(name):
    assert any(
        hasattr(o, last)
        for o, last in (
            (flow, name),
            (flow.Tensor, name),
            (flow.nn.functional, name),
            (flow.linalg, name.removeprefix("linalg.")),
        )
    )


@pytest.mark.parametrize("path", sorted(missing.NAMES))
def test_what_is_said_to_be_missing_is_missing(path):
    owner_path, _, name = path.rpartition(".")
    with pytest.raises(AttributeError, match="^oneflow"):
        find(owner_path, name)
    assert not hasattr(owner(owner_path), name)


@pytest.mark.parametrize("name", sorted(missing.TENSOR))
def test_missing_method(name):
    assert not hasattr(flow.ones(1), name) and not hasattr(flow.Tensor, name)


MODULES = """
    nn nn.functional nn.init nn.graph nn.graph.graph_config nn.graph.util nn.parallel nn.utils nn.utils.rnn nn.modules
    nn.modules.module nn.modules.utils nn.modules.linear nn.optimizer.lr_scheduler optim optim.lr_scheduler utils
    utils.data utils.data.distributed utils.global_view utils.checkpoint env comm sbp boxing boxing.nccl cuda amp
    autograd backends backends.cudnn linalg sysconfig framework framework.tensor framework.dtype distributed
    distributed.launch unittest _C
""".split()


@pytest.mark.parametrize("name", MODULES)
def test_module(name):
    """Each can be imported first of all."""
    done = subprocess.run(
        [sys.executable, "-c", f"import oneflow.{name} as m; print(m.__name__)"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_modules_are_holons_own():
    code = (
        "import oneflow.nn.functional as F, oneflow.utils.data.sampler as s, oneflow.nn.utils.rnn as u, sys; "
        "import holon.nn.functional as G;import holon.utils.data as d; "
        "print(F is G, s.DistributedSampler is d.DistributedSampler, sys.modules['holon.nn.utils.rnn'] is u)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
        == ["True"] * 3
    )


def test_missing_module():
    with pytest.raises(ModuleNotFoundError, match="oneflow.one_embedding is not there: OneEmbedding"):
        importlib.import_module("oneflow.one_embedding")
    with pytest.raises(ModuleNotFoundError, match="there is no module oneflow.qqqq"):
        importlib.import_module("oneflow.qqqq")


def test_adamw_decays_as_oneflows():
    """Not at all unless it is told to; Holon's own decays by 0.01."""
    code = (
        "import {0} as flow; o = flow.optim.AdamW([flow.nn.Parameter(flow.ones(2))], lr=0.1); "
        "print(o.param_groups[0]['weight_decay'])"
    )
    for package, decay in (("oneflow", "0.0"), ("holon", "0.01")):
        assert (
            subprocess.run(
                [sys.executable, "-c", code.format(package)], capture_output=True, text=True, check=True
            ).stdout.strip()
            == decay
        )
