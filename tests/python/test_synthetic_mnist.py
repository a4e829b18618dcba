"""Drawn digits: the same for the same seed, in MNIST's files, and such that LeNet learns them."""

import gzip
import subprocess
import sys

import numpy as np
import pytest
from harness.ranks import environment
from holon.utils.data import DataLoader

import holon as flow
from holon import nn, optim
from holon.data import load_mnist, synthetic_mnist


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "holon.data.synthetic_mnist", *map(str, arguments)],
        env=environment(),
        capture_output=True,
        text=True,
    )


def files(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_the_command(tmp_path):
    done = command(tmp_path / "a/mnist", "--train", 50, "--test", 20, "--seed", 4)
    assert done.returncode == 0 and f"HOLON_DATA_DIR={tmp_path}/a" in done.stdout, done.stderr
    first = files(tmp_path / "a/mnist")
    assert sorted(first) == [
        "t10k-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz",
        "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte.gz",
    ]
    images = gzip.decompress(first["train-images-idx3-ubyte.gz"])
    assert images[:16] == bytes([0, 0, 8, 3, 0, 0, 0, 50, 0, 0, 0, 28, 0, 0, 0, 28]) and len(images) == 16 + 50 * 784
    (train_images, train_labels), (test_images, _) = load_mnist(25, 20, root=tmp_path / "a/mnist")
    drawn, labels = synthetic_mnist.draw(50, seed=4)
    np.testing.assert_array_equal(train_images.reshape(50, 28, 28), drawn.numpy().astype(np.float32) / np.float32(255))
    np.testing.assert_array_equal(train_labels.ravel(), labels.numpy())
    assert not (test_images.reshape(20, 784) == train_images.reshape(50, 784)[:20]).all(1).any()

    again = command(tmp_path / "a/mnist")
    assert again.returncode == 1 and "exists already" in again.stderr and "Traceback" not in again.stderr
    assert command(tmp_path / "b", "--train", 50, "--test", 20, "--seed", 4).returncode == 0
    assert files(tmp_path / "b") == first
    # A plain file would be found before what is written now.
    (tmp_path / "b/train-images-idx3-ubyte").write_bytes(b"old")
    synthetic_mnist.write(tmp_path / "b", 30, 20, seed=5, force=True)
    assert load_mnist(30, 20, root=tmp_path / "b")[0][0].shape[1] == 30


def test_mistakes(tmp_path):
    with pytest.raises(ValueError, match="at least 1"):
        synthetic_mnist.write(tmp_path, 0, 10)
    (tmp_path / "file").write_text("")
    done = command(tmp_path / "file/x")
    assert done.returncode == 1 and "cannot create the folder" in done.stderr


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.classes = nn.Sequential(nn.Flatten(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, x):
        return self.classes(self.features(x))


@pytest.mark.slow
def test_lenet_learns_them(tmp_path):
    """A fifth of the training part, two passes."""
    synthetic_mnist.write(tmp_path, 12_000, 2_000)
    flow.manual_seed(0)
    model = LeNet()
    optimizer = optim.AdamW(model.parameters(), lr=2e-3)
    loader = DataLoader(flow.data.MNIST(tmp_path), 50, shuffle=True, generator=0)
    for _ in range(2):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    images, labels = load_mnist(100, 500, root=tmp_path)[1]
    with flow.no_grad():
        right = sum((model(flow.tensor(x)).argmax(1).numpy() == y).sum() for x, y in zip(images, labels))
    assert right >= 0.97 * 2000, f"{right} of 2000"
