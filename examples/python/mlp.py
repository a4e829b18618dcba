"""Learns which of two moons a point is in: a model, a loss, an optimizer, as in PyTorch.
python examples/python/mlp.py"""

import numpy as np

import holon as flow
from holon import nn, optim


def moons(count, rng):
    angle, which = rng.uniform(0, np.pi, count), rng.integers(0, 2, count)
    x = np.stack([np.cos(angle) * (1 - 2 * which) + which, np.sin(angle) * (1 - 2 * which) + which / 2], 1)
    return (x + rng.normal(0, 0.1, x.shape)).astype(np.float32), which


def main():
    flow.manual_seed(0)
    rng = np.random.default_rng(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = optim.Adam(model.parameters(), lr=1e-2)
    print(model)
    for step in range(301):
        points, which = moons(128, rng)
        loss = nn.functional.cross_entropy(model(flow.tensor(points)), flow.tensor(which))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step:3d}  loss {loss.item():.4f}")
    points, which = moons(1000, rng)
    with flow.no_grad():
        guess = model(flow.tensor(points)).argmax(1).numpy()
    print(f"{np.mean(guess == which):.1%} of 1000 new points are told apart")


if __name__ == "__main__":
    main()
