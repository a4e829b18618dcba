"""Models trained on a cuda device lose what they lose on the CPU."""

import numpy as np
import pytest

import holon as flow
from holon import nn


def mlp():
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 5))


def lenet():
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 3 * 3, 16),
        nn.ReLU(),
        nn.Linear(16, 5),
    )


def losses(make, device, shape, optimizer, steps, clip=None):
    flow.manual_seed(1)
    model = make()
    rng = np.random.default_rng(4)
    for p in model.parameters():
        p.data = flow.tensor(rng.standard_normal(tuple(p.shape)).astype("f") * 0.2)
    model = model.to(device)
    step = optimizer(model.parameters())
    found = []
    for _ in range(steps):
        x = flow.tensor(rng.standard_normal((8, *shape)).astype("f")).to(device)
        label = flow.tensor(rng.integers(0, 5, 8)).to(device)
        loss = nn.functional.cross_entropy(model(x), label)
        step.zero_grad()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        step.step()
        found.append(loss.item())
    return found


OPTIMIZERS = {
    "adam": lambda p: flow.optim.Adam(p, lr=1e-2),
    "sgd": lambda p: flow.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("clip", [None, 0.5])
def test_mlp(optimizer, clip, native):
    here = losses(mlp, "cpu", (20,), OPTIMIZERS[optimizer], 6, clip)
    with native():
        there = losses(mlp, "cuda", (20,), OPTIMIZERS[optimizer], 6, clip)
    np.testing.assert_allclose(there, here, rtol=2e-5)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_lenet(optimizer, native):
    here = losses(lenet, "cpu", (1, 16, 16), OPTIMIZERS[optimizer], 3)
    with native():
        there = losses(lenet, "cuda", (1, 16, 16), OPTIMIZERS[optimizer], 3)
    np.testing.assert_allclose(there, here, rtol=1e-4)
