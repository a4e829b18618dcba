"""What OneFlow computes otherwise than PyTorch: the oneflow package follows OneFlow, holon PyTorch."""

import os
import subprocess
import sys

import numpy as np
import oneflow as flow
import oneflow.nn as nn
import pytest

STEPS = 5


def trained(make, gradients, start):
    p = nn.Parameter(flow.tensor(start))
    optimizer = make([p])
    for g in gradients:
        optimizer.zero_grad()
        (p * flow.tensor(g)).sum().backward()
        optimizer.step()
    return p.detach().numpy()


def data():
    rng = np.random.default_rng(3)
    return rng.normal(size=(STEPS, 3, 4)), rng.normal(size=(3, 4))


@pytest.mark.parametrize("centered", [False, True])
def test_rmsprop_has_eps_under_the_root(centered):
    gradients, p = data()
    found = trained(lambda ps: flow.optim.RMSprop(ps, lr=0.1, alpha=0.9, eps=0.1, centered=centered), gradients, p)
    squares = means = 0
    for g in gradients:
        squares, means = 0.9 * squares + 0.1 * g * g, 0.9 * means + 0.1 * g
        p = p - 0.1 * g / np.sqrt(squares - (means**2 if centered else 0) + 0.1)
    np.testing.assert_allclose(found, p, rtol=1e-9)


def test_lamb_takes_its_ratio_before_the_decay():
    gradients, p = data()
    found = trained(lambda ps: flow.optim.LAMB(ps, lr=0.1, weight_decay=0.3), gradients, p)
    m = v = 0
    for t, g in enumerate(gradients, 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        step = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        p = p - 0.1 * np.linalg.norm(p) / np.linalg.norm(step) * (step + 0.3 * p)
    np.testing.assert_allclose(found, p, rtol=1e-9)


@pytest.mark.parametrize("rule", [flow.optim.RMSprop, flow.optim.LAMB])
def test_these_rules_in_graphs_and_from_checkpoints(rule):
    gradients, start = data()

    def make(ps):
        return rule(ps, lr=0.1, eps=0.1, weight_decay=0.3)

    p = nn.Parameter(flow.tensor(start))
    optimizer = make([p])

    class Step(nn.Graph):
        def __init__(self):
            super().__init__()
            self.add_optimizer(optimizer)

        def build(self, g):
            loss = (p * g).sum()
            loss.backward()
            return loss

    graph = Step()
    for g in gradients:
        graph(flow.tensor(g))
    want = trained(make, gradients, start)
    np.testing.assert_allclose(p.detach().numpy(), want, rtol=1e-12)
    state = optimizer.state_dict()
    again = make([nn.Parameter(flow.tensor(start))])
    again.load_state_dict(state)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 4), (2, 3, 4, 2)], ids=str)
def test_softmax_without_dim(shape):
    x, dim = flow.rand(*shape), 0 if len(shape) in (1, 3) else 1
    want = flow.softmax(x, dim)
    for found in (flow.softmax(x), flow.softmax(x, dim=None), x.softmax(), flow._C.softmax(x), nn.Softmax()(x)):
        np.testing.assert_array_equal(found.numpy(), want.numpy())
    for found in (flow.log_softmax(x), x.log_softmax(), nn.LogSoftmax()(x)):
        np.testing.assert_array_equal(found.numpy(), flow.log_softmax(x, dim).numpy())
    assert x.softmax(-1).sum(-1).numpy().min() > 0.999


def test_channels_last_layers_are_refused():
    def start(value):
        return subprocess.run(
            [sys.executable, "-c", "import oneflow as flow; flow.ones(1)"],
            env={**os.environ, "ONEFLOW_ENABLE_NHWC": value},
            capture_output=True,
            text=True,
        )

    refused = start("1")
    assert refused.returncode != 0 and "ONEFLOW_ENABLE_NHWC=1: layers" in refused.stderr
    assert start("0").returncode == 0


def test_what_oneflow_allows():
    optimizer = flow.optim.SGD([], lr=0.1)
    optimizer.step()
    optimizer.zero_grad()
    counts = nn.Parameter(flow.tensor([1, 2]))
    assert counts.dtype == flow.int64 and not counts.requires_grad
    layer = nn.Linear(2, 2)
    assert layer.state_dict()["weight"] is layer.weight
