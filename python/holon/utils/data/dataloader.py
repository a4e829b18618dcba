"""Loaders: batches of a dataset, made here or ahead of time by worker processes,
local or as parts of global tensors."""

import functools
import itertools
import multiprocessing
import signal
import socket
import sys
import threading
import warnings
import zlib
from collections.abc import Mapping

from ... import _C
from .collate import default_collate, default_convert, map_batch, padding_of
from .dataset import IterableDataset
from .sampler import BatchSampler, RandomSampler, SequentialSampler, seed_of
from .worker import BATCH, END, parent_ends, receive_result, send_message, work

# multiprocessing's list of children is not made for several threads, and ranks may be threads.
_children_lock = threading.Lock()


class _Fetch:
    """Makes a batch, in a worker or here, and returns it behind the number of its samples, of all ranks together. A
    task is (indices, rows): the samples' indices (their number where samples come in order), and which of them this
    rank has."""

    def __init__(self, iterable, batched, collate, drop_last):
        self.iterable, self.batched, self.collate, self.drop_last = iterable, batched, collate, drop_last

    def __call__(self, dataset, iterator, task):
        indices, rows = task
        if self.iterable:
            if not self.batched:
                return 1, self.collate(next(iterator))
            samples = list(itertools.islice(iterator, indices))
            if not samples or (self.drop_last and len(samples) < indices):
                raise StopIteration
        elif not self.batched:
            return 1, self.collate(dataset[indices])
        else:
            n = len(indices)
            mine = indices if rows is None else _part(indices, rows)
            many = getattr(dataset, "__getitems__", None)
            samples = many(mine) if many else [dataset[i] for i in mine]
            return n, self.collate(samples)
        return len(samples), self.collate(samples if rows is None else _part(samples, rows))


def _part(items, rows):
    """This rank's items of a global batch; where it has none, one that tells shapes."""
    first, count = _rows_of(len(items), rows)
    return items[first : first + count] or items[:1]


def _rows_of(n, rows):
    coordinates, sizes = rows
    # The part along each split axis of the ranks in turn: uneven parts give the first ranks one row more.
    first, count = 0, n
    for at, size in zip(coordinates, sizes):
        each, more = divmod(count, size)
        first, count = first + at * each + min(at, more), each + (at < more)
    return first, count


class DataLoader:
    """Iterates over a dataset in batches.

    num_workers processes make batches ahead of time, in their order; an error in one is raised here with the worker's
    traceback. shuffle draws a new order for each epoch, from `generator` (a seed or a Generator) or this rank's random
    numbers.

    With placement and sbp the batch is a global one: batch_size counts the samples of all ranks, every rank loads its
    own rows only, and the batch arrives as global tensors, the same samples in the same order for any number of ranks.
    No samples are sent for that, but the next batch is then collective over the world: ranks agree on the shapes and
    dtypes of a batch (by a message where these are not the ones to expect), and raise where their parts do not belong
    together. The order follows from `generator`, if it is a seed, or from the seed of holon.manual_seed().

    padding_value is for samples of different lengths, such as texts: axes that differ are padded at their ends with it
    to the longest of the batch, on all ranks. One number for all tensors, or one for each in a dict, list or tuple
    built as the batch is: {"input_ids": 0, "labels": -100}; a tensor without one is not padded. A collate_fn of one's
    own may leave its part of a global batch as long as its own rows need; the ranks' parts are then brought to one
    length.

    pin_memory puts the tensors of a batch into pinned memory, from which .to("cuda", non_blocking=True) does not wait.
    Without a device it warns and is left out.

    state_dict() tells where in an epoch the loader is, in samples; after load_state_dict() the next iteration goes on
    with the next sample, also with another batch_size or on another number of ranks.
    """

    def __init__(
        self,
        dataset,
        batch_size=1,
        shuffle=None,
        sampler=None,
        batch_sampler=None,
        num_workers=0,
        collate_fn=None,
        pin_memory=False,
        drop_last=False,
        timeout=0,
        worker_init_fn=None,
        multiprocessing_context=None,
        generator=None,
        *,
        prefetch_factor=None,
        persistent_workers=False,
        pin_memory_device="",
        placement=None,
        sbp=None,
        padding_value=None,
    ):
        def wrong(text):
            raise ValueError(f"DataLoader: {text}")

        if not isinstance(num_workers, int) or num_workers < 0:
            wrong(f"num_workers is {num_workers}; it must be 0 or more.")
        if timeout < 0:
            wrong(f"timeout is {timeout}; it must not be negative.")
        if num_workers == 0 and (timeout or prefetch_factor is not None or persistent_workers):
            wrong("timeout, prefetch_factor and persistent_workers are for workers. Give num_workers.")
        if prefetch_factor is not None and prefetch_factor < 1:
            wrong(f"prefetch_factor is {prefetch_factor}; it must be 1 or more.")
        if (placement is None) != (sbp is None):
            wrong("placement and sbp must be given together. Give both for global batches, neither for local ones.")
        self._iterable = isinstance(dataset, IterableDataset)
        if self._iterable and (sampler is not None or batch_sampler is not None or shuffle):
            wrong("an iterable dataset has its own order: no shuffle, sampler or batch_sampler.")
        if batch_sampler is not None and (batch_size not in (1, None) or shuffle or sampler is not None or drop_last):
            wrong("batch_sampler replaces batch_size, shuffle, sampler and drop_last. Pass it alone.")
        if sampler is not None and shuffle:
            wrong("sampler and shuffle both set the order. Give one of them.")
        if batch_size is None and (drop_last or placement is not None):
            wrong("batch_size None means no batches, so there is no last one to drop and no global one.")
        if padding_value is not None:
            if batch_size is None:
                wrong("padding_value is for batches, and batch_size None means none.")
            if collate_fn is not None and placement is None:
                wrong(
                    "padding_value has no effect on local batches of a collate_fn. "
                    "Pad in the collate_fn, or leave that out."
                )
        if multiprocessing_context is not None and num_workers == 0:
            wrong("multiprocessing_context is for workers. Give num_workers.")
        self.dataset, self.batch_size, self.num_workers, self.drop_last = dataset, batch_size, num_workers, drop_last
        self.timeout, self.worker_init_fn, self.pin_memory, self.generator = (
            timeout,
            worker_init_fn,
            pin_memory,
            generator,
        )
        self.prefetch_factor = (prefetch_factor or 2) if num_workers else None
        self.persistent_workers, self.multiprocessing_context = persistent_workers, multiprocessing_context
        self.placement, self.sbp = placement, sbp
        self._rows = None if placement is None else _rank_rows(placement, sbp)
        self._joiner = None if placement is None else _C.BatchJoiner(placement, sbp)
        self.padding_value = padding_value
        if placement is not None and generator is None:
            generator = _C.initial_seed()  # alike on all ranks, which a drawn seed is not
        if self._iterable:
            self.sampler = None
        elif sampler is not None:
            self.sampler = sampler
        else:
            self.sampler = RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
        self.batch_sampler, self._own_batches = batch_sampler, batch_sampler is None
        if batch_sampler is not None:
            self.batch_size, self.sampler = None, getattr(batch_sampler, "sampler", None)
        elif batch_size is not None:
            self.batch_sampler = BatchSampler(self.sampler, batch_size, drop_last)
        self._pins = bool(pin_memory) and _C.cuda_device_count() > 0
        if pin_memory and not self._pins and _C.setting("HOLON_SIMULATE") != "cuda":
            warnings.warn(
                "DataLoader: pin_memory=True was requested, but there is no cuda device: "
                "batches are in ordinary memory.",
                stacklevel=2,
            )
        self._batched = self.batch_sampler is not None
        if collate_fn is None and padding_value is not None:
            collate_fn = functools.partial(default_collate, padding_value=padding_value)
        self.collate_fn = collate_fn or (default_collate if self._batched else default_convert)
        self._pool, self._position, self._resume = (
            None,
            {"epoch": -1, "batches": 0, "samples": 0, "finished": True},
            None,
        )

    def __len__(self):
        if self._iterable:
            n = len(self.dataset)  # TypeError where it has none
            if self.batch_size is None:
                return n
            return n // self.batch_size if self.drop_last else -(-n // self.batch_size)
        return len(self.batch_sampler if self._batched else self.sampler)

    def __iter__(self):
        if self._resume is not None:
            epoch, skip, passed = self._resume
        else:
            epoch, skip, passed = self._position["epoch"] + 1, 0, 0
        self._resume = None
        self._position = {"epoch": epoch, "batches": skip, "samples": passed, "finished": False}
        tasks = ((indices, self._rows) for indices in self._order(passed))
        batches = self._from_workers(tasks, skip) if self.num_workers else self._from_here(tasks, passed)
        return self._count(batches, self._position)

    def _order(self, passed):
        """What is to be loaded behind as many samples, which are passed over by their indices."""
        if self._iterable:
            return itertools.repeat(self.batch_size)
        if not self._batched:
            return itertools.islice(iter(self.sampler), passed, None)
        if self._own_batches:
            if not passed:
                return iter(self.batch_sampler)
            rest = itertools.islice(iter(self.sampler), passed, None)
            return iter(BatchSampler(rest, self.batch_size, self.drop_last))
        batches, n = iter(self.batch_sampler), 0
        while n < passed:
            indices = next(batches, None)
            n = n + len(indices) if indices is not None else passed + 1
        if n > passed:
            raise ValueError(
                f"DataLoader: the state that was loaded is {passed} samples into the epoch, where no batch of this "
                "batch_sampler ends. Give the batch_sampler with which it was saved."
            )
        return batches

    def _count(self, batches, position):
        for n, batch in batches:
            position["batches"] += 1
            position["samples"] += n
            if _C.is_recording():  # of `holon check`, which names the line that gets the batch
                map_batch(lambda x: _C.record_batch(x) if isinstance(x, _C.Tensor) else None, batch)
            yield batch
        position["finished"] = True

    def _fetcher(self):
        return _Fetch(self._iterable, self._batched, self.collate_fn, self.drop_last)

    def _finish(self, n, batch):
        """Global tensors of what was loaded, in pinned memory where that was requested;
        behind the number of samples."""
        if self._joiner is not None:
            leaves = [(p, x, value) for p, x, value in _leaves(batch, self.padding_value) if isinstance(x, _C.Tensor)]
            values = None if self.padding_value is None else [value for _, _, value in leaves]
            structure = zlib.crc32(repr([p for p, _, _ in leaves]).encode())
            joined = iter(self._joiner.join([x for _, x, _ in leaves], n, values, structure))
            batch = map_batch(lambda x: next(joined) if isinstance(x, _C.Tensor) else x, batch)
        return n, map_batch(_pinned, batch) if self._pins else batch

    def _from_here(self, tasks, passed):
        fetch = self._fetcher()
        iterator = None
        if self._iterable:
            iterator = itertools.islice(iter(self.dataset), passed, None)
        for task in tasks:
            try:
                batch = fetch(self.dataset, iterator, task)
            except StopIteration:
                return
            yield self._finish(*batch)

    def _from_workers(self, tasks, skip):
        pool, self._pool = self._pool, None
        if pool is None:
            pool = _Pool(self, self._fetcher())
        else:
            pool.new_epoch()
        whole = False
        try:
            for number, batch in enumerate(pool.batches(tasks, self.prefetch_factor)):
                if not (self._iterable and number < skip):
                    yield self._finish(*batch)
            whole = True
        finally:
            # Workers that still have something to do are not kept: their answers would be those of another epoch.
            if self.persistent_workers and whole and self._pool is None:
                self._pool = pool
            else:
                pool.close()

    def state_dict(self):
        """Returns the position: the epoch, the samples of it that were handed out, what the sampler needs to go on."""
        own = getattr(self.sampler, "state_dict", None)
        return {
            **self._position,
            "batch_size": self.batch_size,
            "num_workers": self.num_workers,
            "sampler": own() if own else None,
        }

    def load_state_dict(self, state_dict):
        """The next iteration goes on behind the last sample of what was saved, or begins the epoch after it.

        batch_size may be another. Workers that share an iterable dataset must be as many, with the same batch_size:
        which of its samples they had made follows from both.
        """
        missing = {"epoch", "batches", "samples", "finished", "sampler"} - set(state_dict)
        if missing:
            raise ValueError(f"load_state_dict of DataLoader: there is no {sorted(missing)[0]!r}.")
        finished = state_dict["finished"]
        if self._iterable and not finished:
            saved, own = ((d.get("num_workers", 0), d.get("batch_size")) for d in (state_dict, self.state_dict()))
            if saved != own and (saved[0] or own[0]):
                raise ValueError(
                    "load_state_dict of DataLoader: an iterable dataset was read by {} workers in batches of {}, and "
                    "now by {} in batches of {}. Which samples come next is known for the same numbers only: "
                    "make the loader with them.".format(*saved, *own)
                )
        if state_dict["sampler"] is not None:
            own = getattr(self.sampler, "load_state_dict", None)
            if own is None:
                raise ValueError(
                    "load_state_dict of DataLoader: the state is that of another sampler. "
                    "Make the loader with the same arguments."
                )
            if finished and hasattr(self.sampler, "go_on_after"):
                own = self.sampler.go_on_after
            own(state_dict["sampler"])
        self._position = {name: state_dict[name] for name in ("epoch", "batches", "samples", "finished")}
        self._resume = None if finished else (state_dict["epoch"], state_dict["batches"], state_dict["samples"])

    def __del__(self):
        pool = getattr(self, "_pool", None)
        if pool is not None:
            pool.close()


class GlobalDataLoader(DataLoader):
    """A DataLoader of global batches: each rank loads its part of a batch of batch_size samples."""

    def __init__(self, dataset, batch_size=1, shuffle=None, *args, placement, sbp, **options):
        super().__init__(dataset, batch_size, shuffle, *args, placement=placement, sbp=sbp, **options)


def _leaves(batch, padding, path=()):
    """(path, value, its padding) of everything in a batch that is not a dict, list or tuple,
    in the order of map_batch()."""
    if isinstance(batch, Mapping):
        items = batch.items()
    elif isinstance(batch, (list, tuple)):
        items = enumerate(batch)
    else:
        yield path, batch, padding
        return
    for key, value in items:
        yield from _leaves(value, padding_of(padding, key), (*path, key))


def _pinned(x):
    """In pinned memory, if it is a tensor of the CPU or knows how to get there itself."""
    if isinstance(x, _C.Tensor):
        return x if x.is_cuda else x.pin_memory()
    return x.pin_memory() if hasattr(x, "pin_memory") else x


def _rank_rows(placement, sbp):
    """This rank's coordinates and the sizes of the axes of ranks over which rows are split;
    a rank outside has no rows."""
    _C.part_rows(0, placement, sbp)  # raises what is wrong with them
    grid = placement.hierarchy
    sbps = sbp if isinstance(sbp, (list, tuple)) else [sbp]
    ranks = list(_flat(placement.ranks))
    if _C.rank() not in ranks:
        return [1], [1]
    index, at = ranks.index(_C.rank()), []
    for size in reversed(grid):
        index, rest = divmod(index, size)
        at.insert(0, rest)
    split = [d for d, s in enumerate(sbps) if s == _C.sbp.split(0)]
    return [at[d] for d in split], [grid[d] for d in split]


def _flat(nested):
    if hasattr(nested, "tolist"):
        nested = nested.tolist()
    for x in nested:
        if isinstance(x, (list, tuple)):
            yield from _flat(x)
        else:
            yield int(x)


class _Pool:
    """The workers of one loader. Batch i is made by worker i % n, which answers in order:
    nothing needs to be sorted."""

    def __init__(self, loader, fetch):
        method = loader.multiprocessing_context
        context = multiprocessing.get_context(method) if method is None or isinstance(method, str) else method
        if method is None and sys.platform == "linux":
            context = multiprocessing.get_context("fork")
        forked = context.get_start_method() == "fork"
        # Other random numbers in each epoch, also where the seed is a fixed one.
        base = seed_of(loader.generator) + 0x9E3779B1 * loader._position["epoch"]
        self.timeout, self.iterable = loader.timeout or None, loader._iterable
        self.workers = []
        shared = _C.ForkScope()  # the workers have one copy of this process's tensors, not one each
        try:
            for i in range(loader.num_workers):
                ours, theirs = socket.socketpair()
                parent_ends.add(ours)
                process = context.Process(
                    target=work,
                    daemon=True,
                    name=f"holon-loader-{i}",
                    args=(
                        theirs,
                        loader.dataset,
                        fetch,
                        loader.worker_init_fn,
                        i,
                        loader.num_workers,
                        (base + i) % 2**63,
                        forked,
                    ),
                )
                with _children_lock:
                    process.start()
                theirs.close()
                ours.settimeout(self.timeout)
                self.workers.append((process, ours))
        except BaseException:
            self.close()
            raise
        finally:
            del shared

    def new_epoch(self):
        for i in range(len(self.workers)):
            self._send(i, "epoch")

    def batches(self, tasks, ahead):
        tasks = iter(tasks)
        pending = []  # workers that owe an answer, in order
        alive = list(range(len(self.workers)))
        turn = 0

        def assign(worker):
            task = next(tasks, None)
            if task is not None:
                self._send(worker, task)
                pending.append(worker)

        for turn in range(ahead * len(alive)):
            assign(alive[turn % len(alive)])
        while pending:
            worker = pending.pop(0)
            kind, value = self._receive(worker)
            if kind == END:  # of an iterable dataset: the others go on
                if worker in alive:
                    alive.remove(worker)
                continue
            if kind != BATCH:
                value.throw()
            if worker in alive:
                assign(worker)
            yield value

    def _send(self, worker, message):
        try:
            send_message(self.workers[worker][1], message)
        except (BrokenPipeError, ConnectionResetError):
            self._fail_dead(worker)

    def _receive(self, worker):
        try:
            return receive_result(self.workers[worker][1])
        except TimeoutError:
            raise RuntimeError(
                f"DataLoader: worker {worker} made no batch within {self.timeout} s. "
                "Give more time by timeout=, or look at what the dataset does."
            ) from None
        except (EOFError, ConnectionResetError):
            self._fail_dead(worker)

    def _fail_dead(self, worker):
        process = self.workers[worker][0]
        process.join(5)
        code = process.exitcode
        how = (
            "is gone"
            if code is None
            else f"was ended by {signal.Signals(-code).name}"
            if code < 0
            else f"ended with status {code}"
        )
        raise RuntimeError(
            f"DataLoader: worker {worker} (process {process.pid}) {how}. "
            "A worker killed by SIGKILL often had no memory left: use fewer workers, or smaller batches."
        ) from None

    def close(self):
        """Ends the workers: those that wait at once, the others by a signal."""
        workers, self.workers = self.workers, []
        for _, sock in workers:
            sock.close()
        for process, _ in workers:
            process.join(0.2)
            if process.is_alive():
                process.terminate()
                process.join(1)
            if process.is_alive():
                process.kill()
                process.join()
            with _children_lock:
                process.close()

    def __del__(self):
        if getattr(self, "workers", None):
            self.close()
