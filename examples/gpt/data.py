"""Bytes to learn from: the sources of the running interpreter's standard library, or files of your own."""

import sysconfig
import zlib
from pathlib import Path

import numpy as np

SKIPPED = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "lib2to3"}


def standard_library():
    """Yields (name, path) of its modules, without tests and installed packages, in order of their names."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = (path for path in root.rglob("*.py") if not SKIPPED & set(path.relative_to(root).parts))
    yield from sorted((path.relative_to(root).as_posix(), path) for path in paths)


def load(files=None):
    """Returns the training and the validation bytes, 90 to 10:
    whole files by a hash of their names, or one file's last tenth."""
    named = [(Path(f).name, Path(f)) for f in files] if files else list(standard_library())
    if not named:
        raise FileNotFoundError(
            "no sources of the standard library are installed here: give files with --data FILE ..."
        )
    if len(named) == 1:
        text = named[0][1].read_bytes()
        parts = [text[: len(text) * 9 // 10]], [text[len(text) * 9 // 10 :]]
    else:
        parts = [], []
        for name, path in named:
            parts[zlib.crc32(name.encode()) % 10 == 0].append(path.read_bytes())
    train, validation = (np.frombuffer(b"\n".join(part), np.uint8) for part in parts)
    for text, what in ((train, "train on"), (validation, "validate with")):
        if len(text) < 4096:
            raise ValueError(f"{len(text)} bytes are too few to {what}: give larger or more files with --data FILE ...")
    return train, validation


def batch(text, rng, rows, length):
    """Draws rows of length + 1 bytes: what the model sees, and the byte that follows each of those."""
    starts = rng.integers(0, len(text) - length - 1, rows)
    window = text[starts[:, None] + np.arange(length + 1)].astype(np.int64)
    return window[:, :-1], window[:, 1:]


def windows(text, rows, length, limit):
    """Yields at most limit batches that cover the text evenly, the same for every run."""
    starts = np.linspace(0, len(text) - length - 2, limit * rows).astype(np.int64)
    for part in starts.reshape(limit, rows):
        window = text[part[:, None] + np.arange(length + 1)].astype(np.int64)
        yield window[:, :-1], window[:, 1:]


def bigram_loss(train, pairs):
    """The mean loss of guessing each byte from the one before, by counts in the training text (one added to each)."""
    counts = np.bincount(train[:-1].astype(np.int64) * 256 + train[1:], minlength=65536).reshape(256, 256) + 1
    surprise = -np.log(counts / counts.sum(1, keepdims=True))
    return float(np.mean([surprise[before, after].mean() for before, after in pairs]))
