"""Orders of samples."""

import itertools
import math

import numpy as np

from ... import _C


def seed_of(generator):
    """A new seed: of a generator or a number that was given, else drawn from this rank's random numbers."""
    if isinstance(generator, int):
        return generator
    if isinstance(generator, np.random.Generator):
        return int(generator.integers(2**62))
    if hasattr(generator, "get_state") and hasattr(generator, "set_state"):
        # One draw: the next use gives another seed.
        seed, count = generator.get_state()
        generator.set_state((seed, count + 1))
        return (int(seed) + (int(count) + 1) * 0x9E3779B97F4A7C15) % 2**62
    if generator is not None:
        raise TypeError(f"a generator is a seed, a Generator or a numpy Generator, not {type(generator).__name__}.")
    from ... import randint

    return int(randint(0, 2**62, (1,)).item())


class Sampler:
    """Indices of samples in an order: define __iter__(), and __len__() if it is known."""

    def __init__(self, data_source=None):
        pass

    def __iter__(self):
        raise NotImplementedError(f"{type(self).__name__} must define __iter__().")


class SequentialSampler(Sampler):
    """All samples in their order."""

    def __init__(self, data_source):
        self.data_source = data_source

    def __iter__(self):
        return iter(range(len(self.data_source)))

    def __len__(self):
        return len(self.data_source)


class RandomSampler(Sampler):
    """Samples in a random order, another one each time; the same for the same seed.

    replacement: a sample may come several times. num_samples: how many, otherwise all.
    """

    def __init__(self, data_source, replacement=False, num_samples=None, generator=None):
        if num_samples is not None and (not isinstance(num_samples, int) or num_samples < 1):
            raise ValueError(f"RandomSampler: num_samples is {num_samples}; it must be 1 or more.")
        self.data_source, self.replacement, self._num_samples, self.generator = (
            data_source,
            replacement,
            num_samples,
            generator,
        )
        self._epoch, self._seed, self._given = 0, None, None

    @property
    def num_samples(self):
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def state_dict(self):
        """What the order of the epoch that is under way follows from."""
        return {"seed": self._seed, "epoch": self._epoch}

    def load_state_dict(self, state_dict):
        """The next iteration has the order of the one that was saved."""
        self._given = state_dict["seed"], state_dict["epoch"]

    def go_on_after(self, state_dict):
        """The next iteration has the order of the one after that which was saved."""
        self._given, self._seed, self._epoch = None, state_dict["seed"], state_dict["epoch"]

    def _begin(self):
        if self._given is not None and self._given[0] is not None:
            self._seed, self._epoch = self._given
        elif isinstance(self.generator, int):  # one seed: its epochs are numbered
            self._epoch += self._seed is not None
            self._seed = self.generator
        else:
            self._seed, self._epoch = seed_of(self.generator), 0
        self._given = None

    def __iter__(self):
        self._begin()
        n, wanted = len(self.data_source), self.num_samples
        if n == 0:
            return iter(())
        if self.replacement:
            return iter(
                np.random.Generator(np.random.Philox([self._seed, self._epoch])).integers(0, n, wanted).tolist()
            )
        seed, epoch = self._seed, self._epoch
        rounds = (_C.permutation(seed, epoch + (k << 32), n) for k in range(math.ceil(wanted / n)))
        return itertools.islice(itertools.chain.from_iterable(rounds), wanted)

    def __len__(self):
        return self.num_samples


class SubsetRandomSampler(Sampler):
    """The given indices in a random order."""

    def __init__(self, indices, generator=None):
        self.indices = list(indices)
        self._order = RandomSampler(self.indices, generator=generator)

    def state_dict(self):
        return self._order.state_dict()

    def load_state_dict(self, state_dict):
        self._order.load_state_dict(state_dict)

    def go_on_after(self, state_dict):
        self._order.go_on_after(state_dict)

    def __iter__(self):
        return (self.indices[i] for i in self._order)

    def __len__(self):
        return len(self.indices)


class WeightedRandomSampler(RandomSampler):
    """num_samples indices drawn with probabilities in proportion to the weights."""

    def __init__(self, weights, num_samples, replacement=True, generator=None):
        w = np.asarray(weights.tolist() if isinstance(weights, _C.Tensor) else list(weights), dtype=np.float64)
        if w.ndim != 1 or len(w) == 0 or not np.isfinite(w).all() or (w < 0).any() or w.sum() == 0:
            raise ValueError("WeightedRandomSampler: weights must be a list of numbers, none negative and not all 0.")
        if not isinstance(num_samples, int) or num_samples < 1:
            raise ValueError(f"WeightedRandomSampler: num_samples is {num_samples}; it must be 1 or more.")
        if not replacement and num_samples > np.count_nonzero(w):
            raise ValueError(
                f"WeightedRandomSampler: {num_samples} samples without replacement of {np.count_nonzero(w)} with a "
                "weight."
            )
        self.weights, self._num_samples, self.replacement, self.generator = w, num_samples, replacement, generator
        self._epoch, self._seed, self._given = 0, None, None

    def __iter__(self):
        self._begin()
        random = np.random.Generator(np.random.Philox([self._seed, self._epoch]))
        return iter(
            random.choice(
                len(self.weights), self.num_samples, self.replacement, self.weights / self.weights.sum()
            ).tolist()
        )

    def __len__(self):
        return self.num_samples


class BatchSampler(Sampler):
    """Lists of batch_size indices of another sampler."""

    def __init__(self, sampler, batch_size, drop_last=False):
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
            raise ValueError(f"batch_size is {batch_size!r}; it must be a number of 1 or more.")
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self):
        indices = iter(self.sampler)
        while batch := list(itertools.islice(indices, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __len__(self):
        n = len(self.sampler)
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)


class DistributedSampler(Sampler):
    """This rank's share of all samples, for training on local tensors: every num_replicas-th one from `rank` on.

    Without drop_last some samples come twice, so that all ranks have as many. set_epoch() before each epoch changes the
    order. (A loader given placement= and sbp= needs no sampler of this kind.)
    """

    def __init__(self, dataset, num_replicas=None, rank=None, shuffle=True, seed=0, drop_last=False):
        self.num_replicas = _C.world_size() if num_replicas is None else num_replicas
        self.rank = _C.rank() if rank is None else rank
        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(f"DistributedSampler: rank {self.rank} of {self.num_replicas}.")
        self.dataset, self.shuffle, self.seed, self.drop_last, self.epoch = dataset, shuffle, seed, drop_last, 0

    @property
    def num_samples(self):
        n = len(self.dataset)
        return n // self.num_replicas if self.drop_last else -(-n // self.num_replicas)

    @property
    def total_size(self):
        return self.num_samples * self.num_replicas

    def set_epoch(self, epoch):
        self.epoch = epoch

    def state_dict(self):
        return {"epoch": self.epoch}

    def load_state_dict(self, state_dict):
        self.epoch = state_dict["epoch"]

    def __iter__(self):
        n = len(self.dataset)
        order = _C.permutation(self.seed, self.epoch, n) if self.shuffle else list(range(n))
        if n:
            order = list(itertools.islice(itertools.cycle(order), self.total_size))
        return iter(order[self.rank :: self.num_replicas])

    def __len__(self):
        return self.num_samples
