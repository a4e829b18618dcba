"""LeNet on MNIST, on one rank or many:

    python -m holon.distributed.launch --nproc_per_node 2 examples/python/lenet_mnist.py

Reads MNIST's four files, plain or .gz, from $HOLON_DATA_DIR/mnist.
`python -m holon.data.synthetic_mnist DIR/mnist` draws such digits.
"""

import argparse

import numpy as np

import holon as flow
from holon import nn, optim
from holon.data import MNIST


class LeNet(nn.Module):
    def __init__(self, **where):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 5, padding="same", **where),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding="same", **where),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classes = nn.Sequential(
            nn.Flatten(), nn.Linear(7 * 7 * 64, 512, **where), nn.ReLU(), nn.Dropout(0.5), nn.Linear(512, 10, **where)
        )

    def forward(self, x):
        return self.classes(self.features(x))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=100)
    options = parser.parse_args()
    train, test = MNIST(), MNIST(train=False)
    images, labels, test_images, test_labels = train.images, train.labels, test.images, test.labels

    flow.manual_seed(0)
    everywhere, rank = flow.placement.all("cpu"), flow.env.get_rank()
    model = LeNet(placement=everywhere, sbp=flow.sbp.broadcast)
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    rng = np.random.default_rng(0)

    def place(array):
        return flow.tensor(array, placement=everywhere, sbp=flow.sbp.split(0))

    def pixels(chosen):
        return place((chosen[:, None] / 255).astype(np.float32))

    for epoch in range(options.epochs):
        model.train()
        order = rng.permutation(len(images))
        for step, at in enumerate(range(0, len(order) - options.batch + 1, options.batch)):
            chosen = order[at : at + options.batch]
            loss = nn.functional.cross_entropy(model(pixels(images[chosen])), place(labels[chosen].astype(np.int64)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            value = loss.item() if step % 20 == 0 else None
            if value is not None and rank == 0:
                print(f"epoch {epoch}  step {step:4d}  loss {value:.4f}", flush=True)
        model.eval()
        right = 0
        with flow.no_grad():
            for at in range(0, len(test_images), 500):
                guess = model(pixels(test_images[at : at + 500])).argmax(1).numpy()
                right += int((guess == test_labels[at : at + 500]).sum())
        if rank == 0:
            print(
                f"epoch {epoch}  {right / len(test_images):.2%} of {len(test_images)} test digits are right", flush=True
            )


if __name__ == "__main__":
    main()
