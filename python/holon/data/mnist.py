"""MNIST, and what comes in its form: four IDX files, plain or compressed by gzip."""

import os

import numpy as np

from .. import _C
from ..utils.data import Dataset


def _folders(root, out_dir="."):
    if root is not None:
        return [os.fspath(root)]
    set_by_user = os.environ.get("HOLON_DATA_DIR")
    folders = [os.path.join(set_by_user, "mnist")] if set_by_user else []
    # The default of out_dir, where the program runs, comes last: nobody asked for it.
    return [*folders, os.getcwd()] if out_dir == "." else [os.fspath(out_dir), *folders]


def _read(folder, train):
    return tuple(part.numpy() for part in _C.read_mnist(folder, train))


def load_mnist(
    train_batch_size=100, test_batch_size=100, data_format="NCHW", url=None, hash_check=None, out_dir=".", *, root=None
):
    """Returns MNIST cut in batches: (train_images, train_labels), (test_images, test_labels), as arrays of NumPy.

    Images are float32 [batches, batch_size, 1, 28, 28] ("NHWC": [batches, batch_size, 28, 28, 1]) from 0 to 1, labels
    int32 [batches, batch_size], in the order of the files: train-images-idx3-ubyte, train-labels-idx1-ubyte,
    t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, plain or with .gz, in root, else in out_dir or
    $HOLON_DATA_DIR/mnist. Nothing is downloaded: url and hash_check are ignored.
    `python -m holon.data.synthetic_mnist DIR` draws such files.

    Errors: a part whose samples are not a multiple of its batch size (ValueError);
    files that are not there or damaged (RuntimeError).
    """
    if data_format not in ("NCHW", "NHWC"):
        raise ValueError(f'load_mnist: data_format is {data_format!r}. Give "NCHW" or "NHWC".')
    for name, size in (("train_batch_size", train_batch_size), ("test_batch_size", test_batch_size)):
        if size != int(size) or size < 1:
            raise ValueError(f"load_mnist: {name} is {size}. Give an integer that is at least 1.")
    folder = _C.find_mnist(_folders(root, out_dir))
    shape = (1, 28, 28) if data_format == "NCHW" else (28, 28, 1)
    parts = []
    for train, batch_size in ((True, int(train_batch_size)), (False, int(test_batch_size))):
        images, labels = _read(folder, train)
        if len(labels) % batch_size:
            name = "train" if train else "test"
            raise ValueError(
                f"load_mnist: the {len(labels)} {name} samples do not divide into batches of {batch_size}. "
                f"Give a {name}_batch_size that divides them: nothing is dropped."
            )
        batches = len(labels) // batch_size
        pixels = np.divide(images, np.float32(255), dtype=np.float32)
        parts.append(
            (pixels.reshape(batches, batch_size, *shape), labels.astype(np.int32).reshape(batches, batch_size))
        )
    return tuple(parts)


class MNIST(Dataset):
    """The 60,000 samples of MNIST to train with, or the 10,000 to test with:
    pairs of an image, float32 [1, 28, 28] from 0 to 1, and its digit.

    The files are those of load_mnist(), in root, else in $HOLON_DATA_DIR/mnist.
    """

    def __init__(self, root=None, train=True):
        self.images, self.labels = _read((_folders(root) or [""])[0], train)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return _C.tensor(np.divide(self.images[index][None], np.float32(255), dtype=np.float32)), int(
            self.labels[index]
        )
