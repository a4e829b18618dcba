"""Readers of data files, and what `holon.utils.data` has."""

import os

from .. import _C
from .._C import ByteCorpus, files_below
from ..utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    GlobalDataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    default_convert,
    get_worker_info,
    random_split,
)
from .chat import ChatTemplate, PackedRows, pack_conversations, read_conversations
from .mnist import MNIST, load_mnist

__all__ = [
    "BatchSampler",
    "ByteCorpus",
    "ByteDataset",
    "ChainDataset",
    "ChatTemplate",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "GlobalDataLoader",
    "IdxDataset",
    "IterableDataset",
    "MNIST",
    "PackedRows",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "StackDataset",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "WeightedRandomSampler",
    "default_collate",
    "default_convert",
    "files_below",
    "get_worker_info",
    "load_mnist",
    "pack_conversations",
    "random_split",
    "read_conversations",
    "read_idx",
]


def read_idx(path):
    """Returns the values of an IDX file (the format of MNIST) as a local tensor;
    a file compressed by gzip is unpacked."""
    return _C.read_idx(os.fspath(path))


class IdxDataset(TensorDataset):
    """Samples of IDX files side by side, such as images and labels."""

    def __init__(self, *paths):
        super().__init__(*(read_idx(path) for path in paths))


class ByteDataset(Dataset):
    """Windows of `length` bytes of text, as int64, from the files taken as one:
    sample i begins at i * stride (length, if None).

    The files are mapped into memory, so that they may be larger than it.
    With targets a sample is a pair, the second being the window one byte later.
    """

    def __init__(self, paths, length, stride=None, targets=False):
        self.paths = [os.fspath(p) for p in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]
        self.length, self.stride, self.targets = length, length if stride is None else stride, targets
        if self.length < 1 or self.stride < 1:
            raise ValueError(f"ByteDataset: length is {length} and stride {stride}; both must be 1 or more.")
        self.corpus = ByteCorpus(self.paths)

    def __len__(self):
        return max(0, (len(self.corpus) - self.length - self.targets) // self.stride + 1)

    def __getitem__(self, index):
        n = len(self)
        if not -n <= index < n:
            raise IndexError(f"window {index} of {n}.")
        return self.__getitems__([index])[0]

    def __getitems__(self, indices):
        n = len(self)
        rows = self.corpus.rows([i % n * self.stride for i in indices], self.length + self.targets)
        return [(r[:-1], r[1:]) if self.targets else r for r in rows]

    def __reduce__(self):
        return ByteDataset, (self.paths, self.length, self.stride, self.targets)


def __getattr__(name):
    if name.lower().startswith(("ofrecord", "onerec", "coco", "image_")):
        raise AttributeError(
            f"data has no '{name}': files are not read inside job functions. "
            "Read them into arrays, for example by a DataLoader, and call the job function with those."
        )
    raise AttributeError(f"data has no '{name}'. It has {', '.join(__all__)}.")
