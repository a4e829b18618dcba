"""Collections of samples."""

import bisect
import itertools

from ... import _C


class Dataset:
    """Samples by index: define __getitem__(index) and __len__()."""

    def __getitem__(self, index):
        raise NotImplementedError(f"{type(self).__name__} must define __getitem__(index).")

    def __add__(self, other):
        return ConcatDataset([self, other])


class IterableDataset(Dataset):
    """Samples one after the other: define __iter__().
    With workers, each iterates a copy: use get_worker_info() to share out."""

    def __iter__(self):
        raise NotImplementedError(f"{type(self).__name__} must define __iter__().")

    def __add__(self, other):
        return ChainDataset([self, other])


class TensorDataset(Dataset):
    """Sample i is the i-th element of each tensor."""

    def __init__(self, *tensors):
        if not tensors:
            raise ValueError("TensorDataset needs at least one tensor.")
        sizes = [len(t) for t in tensors]
        if len(set(sizes)) != 1:
            raise ValueError(f"TensorDataset: the tensors have {sizes} samples. They must be the same.")
        self.tensors = tensors

    def __getitem__(self, index):
        return tuple(t[index] for t in self.tensors)

    def __len__(self):
        return len(self.tensors[0])


class StackDataset(Dataset):
    """Samples of several datasets side by side, as tuples or (with names) dicts."""

    def __init__(self, *datasets, **named):
        if bool(datasets) == bool(named):
            raise ValueError("StackDataset takes datasets either all with names or all without.")
        self.datasets = named or datasets
        sizes = [len(d) for d in (named.values() if named else datasets)]
        if len(set(sizes)) != 1:
            raise ValueError(f"StackDataset: the datasets have {sizes} samples. They must be the same.")
        self._length = sizes[0]

    def __getitem__(self, index):
        if isinstance(self.datasets, dict):
            return {name: d[index] for name, d in self.datasets.items()}
        return tuple(d[index] for d in self.datasets)

    def __len__(self):
        return self._length


class ConcatDataset(Dataset):
    """Datasets one after the other."""

    def __init__(self, datasets):
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("ConcatDataset needs at least one dataset.")
        if any(isinstance(d, IterableDataset) for d in self.datasets):
            raise TypeError("ConcatDataset takes datasets with indices. Use ChainDataset for iterable ones.")
        self.cumulative_sizes = list(itertools.accumulate(len(d) for d in self.datasets))

    def __getitem__(self, index):
        n = len(self)
        if not -n <= index < n:
            raise IndexError(f"sample {index} of {n}.")
        index %= n
        which = bisect.bisect_right(self.cumulative_sizes, index)
        return self.datasets[which][index - (self.cumulative_sizes[which - 1] if which else 0)]

    def __len__(self):
        return self.cumulative_sizes[-1]


class ChainDataset(IterableDataset):
    """Iterable datasets one after the other."""

    def __init__(self, datasets):
        self.datasets = list(datasets)

    def __iter__(self):
        return itertools.chain.from_iterable(self.datasets)


class Subset(Dataset):
    """The samples of a dataset with the given indices."""

    def __init__(self, dataset, indices):
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, index):
        return self.dataset[self.indices[index]]

    def __len__(self):
        return len(self.indices)


def random_split(dataset, lengths, generator=None):
    """Returns Subsets of random samples without overlap; lengths are counts, or shares whose sum is 1.

    generator: a seed, or an object with initial_seed(); without one the order comes from the rank's own random numbers.
    """
    from .sampler import seed_of

    total, lengths = len(dataset), list(lengths)
    if (
        lengths
        and all(0 <= x <= 1 for x in lengths)
        and abs(sum(lengths) - 1) < 1e-9
        and not all(isinstance(x, int) for x in lengths)
    ):
        counts = [int(total * share) for share in lengths]
        for i in range(total - sum(counts)):
            counts[i % len(counts)] += 1
        lengths = counts
    if sum(lengths) != total:
        raise ValueError(f"random_split: lengths {lengths} add up to {sum(lengths)}, the dataset has {total} samples.")
    order = _C.permutation(seed_of(generator), 0, total)
    ends = list(itertools.accumulate(lengths))
    return [Subset(dataset, order[end - n : end]) for n, end in zip(lengths, ends)]
