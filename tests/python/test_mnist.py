"""load_mnist and the data set MNIST: batches as OneFlow cuts them, and files that are missing,
damaged or do not fit."""

import gzip
import os
import random
import struct
from pathlib import Path

import numpy as np
import pytest
from holon.utils.data import DataLoader

import holon
from holon import data

NAMES = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]


def idx(array):
    array = np.asarray(array, np.uint8)
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write(folder, train=12, test=8, pack=False, seed=0):
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    arrays = [
        rng.integers(0, 256, (train, 28, 28)),
        rng.integers(0, 10, train),
        rng.integers(0, 256, (test, 28, 28)),
        rng.integers(0, 10, test),
    ]
    for name, array in zip(NAMES, arrays):
        (folder / f"{name}.gz" if pack else folder / name).write_bytes(
            gzip.compress(idx(array)) if pack else idx(array)
        )
    return arrays


@pytest.mark.parametrize("pack", [False, True])
def test_batches(tmp_path, monkeypatch, pack):
    arrays = write(tmp_path / "mnist", pack=pack)
    monkeypatch.setenv("HOLON_DATA_DIR", str(tmp_path))
    (train_images, train_labels), (test_images, test_labels) = data.load_mnist(4, 8)
    assert train_images.shape == (3, 4, 1, 28, 28) and train_images.dtype == np.float32
    assert train_labels.shape == (3, 4) and train_labels.dtype == np.int32
    assert test_images.shape == (1, 8, 1, 28, 28) and test_labels.shape == (1, 8)
    np.testing.assert_array_equal(train_images.reshape(12, 28, 28), arrays[0].astype(np.float32) / np.float32(255))
    np.testing.assert_array_equal(train_labels.ravel(), arrays[1])
    np.testing.assert_array_equal(test_labels.ravel(), arrays[3])
    channels_last = data.load_mnist(4, 8, "NHWC")[0][0]
    assert channels_last.shape == (3, 4, 28, 28, 1)
    np.testing.assert_array_equal(channels_last[..., 0], train_images[:, :, 0])
    assert train_images.flags.writeable and train_images.flags.c_contiguous


def test_where_files_are_looked_for(tmp_path, monkeypatch):
    write(tmp_path / "env/mnist", seed=1)
    write(tmp_path / "out", seed=2)
    write(tmp_path / "root", seed=3)
    monkeypatch.setenv("HOLON_DATA_DIR", str(tmp_path / "env"))
    monkeypatch.chdir(tmp_path / "out")

    def first(**where):
        return data.load_mnist(12, 8, **where)[0][0].ravel()[:50].tolist()

    found = {1: first(), 2: first(out_dir=tmp_path / "out"), 3: first(root=tmp_path / "root")}
    assert len({tuple(v) for v in found.values()}) == 3
    assert (
        first(out_dir="nowhere") == found[1]
        and first(out_dir=str(tmp_path / "out"), url="x", hash_check=False) == found[2]
    )
    monkeypatch.delenv("HOLON_DATA_DIR")
    assert first() == found[2]
    # Not from two folders: where one file lacks, the whole folder is passed over.
    monkeypatch.setenv("HOLON_DATA_DIR", str(tmp_path / "env"))
    (tmp_path / "env/mnist" / NAMES[3]).unlink()
    assert first() == found[2]
    # As some programs that unpack spell it.
    for name in NAMES:
        (tmp_path / "root" / name).rename(tmp_path / "root" / name.replace("-idx", ".idx"))
    assert first(root=tmp_path / "root") == found[3]


def test_missing_files_are_named(tmp_path, monkeypatch):
    monkeypatch.delenv("HOLON_DATA_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError) as e:
        data.load_mnist()
    for text in [*NAMES, "HOLON_DATA_DIR is not set", "python -m holon.data.synthetic_mnist DIR", str(tmp_path)]:
        assert text in str(e.value)
    write(tmp_path / "mnist")
    (tmp_path / "mnist" / NAMES[1]).unlink()
    monkeypatch.setenv("HOLON_DATA_DIR", str(tmp_path))
    with pytest.raises(RuntimeError, match=rf"{tmp_path}/mnist lacks {NAMES[1]}\."):
        data.load_mnist()
    with pytest.raises(RuntimeError, match=f"lacks {NAMES[1]}"):
        data.MNIST()
    assert len(data.MNIST(train=False)) == 8
    with pytest.raises(RuntimeError, match="elsewhere is not a folder"):
        data.load_mnist(root=tmp_path / "elsewhere")


def test_mistakes(tmp_path):
    write(tmp_path)
    with pytest.raises(ValueError, match="12 train samples .* batches of 5.*train_batch_size"):
        data.load_mnist(5, 8, root=tmp_path)
    with pytest.raises(ValueError, match="8 test samples .* batches of 100"):
        data.load_mnist(12, root=tmp_path)
    with pytest.raises(ValueError, match="data_format is 'NC'"):
        data.load_mnist(data_format="NC", root=tmp_path)
    for size in (0, -1, 1.5):
        with pytest.raises(ValueError, match="train_batch_size"):
            data.load_mnist(size, root=tmp_path)


@pytest.mark.parametrize(
    "name, content, message",
    [
        (NAMES[0], idx(np.zeros((12, 28, 27))), r"uint8 \[12, 28, 27\]; images of MNIST"),
        (NAMES[0], idx(np.zeros(12)), r"images of MNIST are uint8 \[samples, 28, 28\]"),
        (NAMES[0], idx(np.zeros((11, 28, 28))), "11 images and .* 12 labels"),
        (NAMES[1], idx([3] * 13), "12 images and .* 13 labels"),
        (NAMES[1], idx(np.zeros((12, 1))), r"labels of MNIST are uint8 \[samples\]"),
        (NAMES[1], idx([3] * 5 + [10] * 7), "label 5 is 10"),
        (NAMES[2], idx(np.zeros((8, 28, 28)))[:-1], "truncated or damaged"),
        (NAMES[2], b"", "found 0 bytes"),
        (NAMES[3], gzip.compress(idx([1] * 8))[:-3], "gzip data is damaged: it is truncated"),
        (NAMES[3], gzip.compress(idx([1] * 8))[:-8] + bytes(8), "gzip data is damaged"),
        (NAMES[3], gzip.compress(idx([1] * 8)) + b"x", "gzip data is damaged: 1 bytes"),
        (NAMES[3], gzip.compress(idx([1] * 9)[:-1]), "truncated or damaged"),
        (NAMES[3], gzip.compress(idx([1] * 8) + b"x"), "truncated or damaged"),
        (NAMES[3], gzip.compress(b"\0\0\x08\x03" + b"\xff" * 12 + bytes(100)), "do not fit"),
    ],
)
def test_wrong_files_are_named(tmp_path, name, content, message):
    write(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RuntimeError, match=message) as e:
        data.load_mnist(12, 8, root=tmp_path)
    assert name in str(e.value)


def test_gzip_of_several_members_and_padding(tmp_path):
    arrays = write(tmp_path)
    whole = idx(arrays[3])
    (tmp_path / NAMES[3]).write_bytes(gzip.compress(whole[:5]) + gzip.compress(whole[5:]) + bytes(100))
    assert data.load_mnist(12, 8, root=tmp_path)[1][1].ravel().tolist() == arrays[3].tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_dataset(tmp_path, workers):
    arrays = write(tmp_path)
    samples = data.MNIST(tmp_path, train=False)
    image, label = samples[2]
    assert image.shape == (1, 28, 28) and image.dtype == holon.float32 and label == arrays[3][2]
    images, labels = next(iter(DataLoader(samples, 8, num_workers=workers)))
    assert images.shape == (8, 1, 28, 28) and labels.tolist() == arrays[3].tolist()
    np.testing.assert_array_equal(images.numpy()[:, 0], arrays[2].astype(np.float32) / np.float32(255))


def test_the_real_digits(tmp_path):
    source = next(
        (p / "shared/data/mnist" for p in Path(__file__).resolve().parents if (p / "shared/data/mnist").exists()), None
    )
    if source is None:
        pytest.skip("no folder shared/data/mnist above this repository: the digits of MNIST are not here")
    for name in NAMES:
        (tmp_path / f"{name}.gz").symlink_to(source / f"{name.replace('train', 't10k')}.gz")
    (images, labels), _ = data.load_mnist(root=tmp_path)
    assert images.shape == (100, 100, 1, 28, 28) and np.bincount(labels.ravel()).tolist()[:3] == [980, 1135, 1032]
    assert images.max() == 1 and abs(float(images.mean()) - 0.1325) < 1e-3


def test_random_damage_is_an_error_that_names_a_file(tmp_path):
    rng = random.Random(0)
    write(tmp_path)
    refused = 0
    for i in range(400):
        pack = i % 2 == 0
        write(tmp_path, pack=pack)
        path = tmp_path / (rng.choice(NAMES) + (".gz" if pack else ""))
        content = bytearray(path.read_bytes())
        if i % 3 == 0:
            del content[rng.randrange(len(content)) :]
        elif i % 3 == 1:
            for _ in range(rng.choice([1, 3])):
                content[rng.randrange(min(20, len(content)))] = rng.randrange(256)
        else:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        try:
            data.load_mnist(12, 8, root=tmp_path)
        except RuntimeError as e:
            assert str(path) in str(e)
            refused += 1
        except ValueError as e:  # one image and one label fewer
            assert "do not divide" in str(e)
        for name in os.listdir(tmp_path):
            (tmp_path / name).unlink()
    assert refused > 200
