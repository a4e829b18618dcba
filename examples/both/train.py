"""A model and its training loop in C++ (models.cpp), data and evaluation in Python: points on three spirals.

python examples/both/train.py [--epochs 30] [--library libmodels.so]
"""

import argparse
from pathlib import Path

import numpy as np
from holon.utils import cpp_extension
from holon.utils.data import DataLoader, TensorDataset

import holon as flow
from holon import nn


def spirals(n, seed):
    """n points of each of three spirals, and which it is."""
    rng = np.random.default_rng(seed)
    kind = np.repeat(np.arange(3), n)
    radius = rng.uniform(0.1, 1, 3 * n)
    angle = 4 * radius + kind * 2 * np.pi / 3 + rng.normal(0, 0.1, 3 * n)
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
    return flow.tensor(points, dtype=flow.float32), flow.tensor(kind)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--library", help="models.cpp as a shared library; by default it is compiled")
    args = parser.parse_args()

    if args.library:
        models = flow.import_library(args.library, "models")
    else:
        source = Path(__file__).with_name("models.cpp")
        models = cpp_extension.load("models", [source], is_python_module=True)

    flow.manual_seed(0)
    model = models.Classifier(inputs=2, width=32)
    loader = DataLoader(TensorDataset(*spirals(200, seed=0)), batch_size=50, shuffle=True)

    # The loop is C++: it takes the batches of Python's loader one by one.
    losses = models.train(model, loader, epochs=args.epochs, lr=0.01)
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")

    # Here the model is a module of Python's like others.
    points, kinds = spirals(100, seed=1)
    model.eval()
    with flow.no_grad():
        right = (model(points).argmax(1) == kinds).float().mean().item()
    print(f"{100 * right:.1f}% of {len(kinds)} new points are right")

    # So it can be continued with Python's optimizers, inside other modules.
    both = nn.Sequential(model, nn.LogSoftmax(dim=1))
    sgd = flow.optim.SGD(both.parameters(), lr=0.01)
    loss = nn.NLLLoss()(both(points), kinds)
    loss.backward()
    sgd.step()
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {len(model.state_dict())} tensors in state_dict()")


if __name__ == "__main__":
    main()
