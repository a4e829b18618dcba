"""Datasets, samplers, loaders with and without workers, global batches, and readers of files."""

import gzip
import os
import signal
import struct
import textwrap
import time

import numpy as np
import pytest
from harness import ranks
from holon.utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    GlobalDataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
    random_split,
)

import holon
from holon import data


class Numbers(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return holon.tensor([float(i), -float(i)]), i


class Stream(IterableDataset):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        info = get_worker_info()
        return iter(range(self.n) if info is None else range(info.id, self.n, info.num_workers))


class Generator:
    """What a loader uses of a generator of random numbers."""

    def __init__(self):
        self.state = (5, 0)

    def get_state(self):
        return self.state

    def set_state(self, state):
        self.state = state


def flat(loader):
    return [x for batch in loader for x in batch[1].tolist()]


def test_datasets():
    x, y = holon.arange(6).reshape(3, 2), holon.tensor([7, 8, 9])
    both = TensorDataset(x, y)
    assert len(both) == 3 and both[1][0].tolist() == [2, 3] and both[1][1].item() == 8
    joined = both + TensorDataset(x + 10, y)
    assert isinstance(joined, ConcatDataset) and len(joined) == 6 and joined[-1][0].tolist() == [14, 15]
    with pytest.raises(IndexError):
        joined[6]
    part = Subset(joined, [5, 0])
    assert len(part) == 2 and part[0][0].tolist() == [14, 15]
    assert StackDataset(a=Numbers(3), b=both)[2]["b"][1].item() == 9
    assert list(ChainDataset([Stream(2), Stream(1)])) == [0, 1, 0]
    with pytest.raises(ValueError, match=r"\[3, 2\]"):
        TensorDataset(x, y[:2])


def test_random_split():
    parts = random_split(Numbers(10), [7, 3], generator=5)
    assert [len(p) for p in parts] == [7, 3] and sorted(i for p in parts for i in p.indices) == list(range(10))
    assert [p.indices for p in random_split(Numbers(10), [7, 3], generator=5)] == [p.indices for p in parts]
    assert [len(p) for p in random_split(Numbers(10), [0.5, 0.25, 0.25], generator=1)] == [6, 2, 2]
    with pytest.raises(ValueError, match="add up to 9"):
        random_split(Numbers(10), [4, 5])


def test_samplers():
    assert list(SequentialSampler(Numbers(3))) == [0, 1, 2]
    once = RandomSampler(Numbers(50), generator=3)
    first, second = list(once), list(once)
    assert sorted(first) == sorted(second) == list(range(50)) and first != second
    assert list(RandomSampler(Numbers(50), generator=3)) == first
    holon.manual_seed(1)
    drawn = list(RandomSampler(Numbers(50)))
    holon.manual_seed(1)
    assert list(RandomSampler(Numbers(50))) == drawn
    for make in (lambda: np.random.default_rng(3), Generator):
        source = make()
        orders = [list(RandomSampler(Numbers(50), generator=source)) for _ in range(2)]
        assert orders[0] != orders[1] and orders[0] == list(RandomSampler(Numbers(50), generator=make()))
    assert len(list(RandomSampler(Numbers(5), num_samples=12, generator=1))) == 12
    many = list(RandomSampler(Numbers(5), replacement=True, num_samples=1000, generator=1))
    assert set(many) == set(range(5)) and len(many) == 1000
    assert sorted(SubsetRandomSampler([7, 3, 9], generator=1)) == [3, 7, 9]
    counts = np.bincount(list(WeightedRandomSampler([1, 0, 3], 4000, generator=2)), minlength=3) / 4000
    np.testing.assert_allclose(counts, [0.25, 0, 0.75], atol=0.03)
    assert sorted(WeightedRandomSampler([1, 2, 3], 3, replacement=False, generator=2)) == [0, 1, 2]
    assert list(BatchSampler(range(5), 2)) == [[0, 1], [2, 3], [4]] and len(BatchSampler(range(5), 2)) == 3
    assert list(BatchSampler(range(5), 2, drop_last=True)) == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="weights"):
        WeightedRandomSampler([0, 0], 1)
    with pytest.raises(ValueError, match="batch_size is 0"):
        BatchSampler(range(5), 0)


def test_every_order_of_a_permutation_comes_up():
    seen = {}
    for seed in range(6000):
        order = tuple(holon._C.permutation(seed, 0, 3))
        seen[order] = seen.get(order, 0) + 1
    assert len(seen) == 6 and min(seen.values()) > 850
    assert holon._C.permutation(1, 0, 0) == [] and holon._C.permutation(1, 0, 20) != holon._C.permutation(1, 1, 20)


def test_distributed_sampler():
    for n, drop, each in [(10, False, 4), (10, True, 3), (1, False, 1)]:
        shares = [list(DistributedSampler(Numbers(n), 3, r, drop_last=drop)) for r in range(3)]
        assert {len(s) for s in shares} == {each}
        assert set().union(*shares) == set(range(n)) if not drop else len(set().union(*shares)) == 9
    sampler = DistributedSampler(Numbers(30), 3, 1, seed=4)
    first = list(sampler)
    sampler.set_epoch(1)
    assert list(sampler) != first
    assert list(DistributedSampler(Numbers(5), 2, 1, shuffle=False)) == [1, 3, 0]
    with pytest.raises(ValueError, match="rank 3 of 3"):
        DistributedSampler(Numbers(5), 3, 3)


def test_collate():
    batch = default_collate([{"a": holon.ones(2), "b": (1, 2.5), "c": "x", "d": np.zeros(3, np.int32), "e": True}] * 2)
    assert batch["a"].shape == (2, 2) and batch["b"][0].tolist() == [1, 1] and batch["b"][1].dtype == holon.float64
    assert batch["c"] == ["x", "x"] and batch["d"].dtype == holon.int32 and batch["e"].tolist() == [True, True]
    with pytest.raises(ValueError, match="shapes"):
        default_collate([holon.ones(2), holon.ones(3)])
    with pytest.raises(TypeError, match="collate_fn"):
        default_collate([object()])


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_loader_gives_all_batches_in_order(workers):
    loader = DataLoader(Numbers(11), 3, num_workers=workers)
    batches = list(loader)
    assert len(loader) == 4 and [len(b[1]) for b in batches] == [3, 3, 3, 2] and flat(loader) == list(range(11))
    np.testing.assert_array_equal(batches[3][0].numpy(), [[9, -9], [10, -10]])
    batches[0][0].add_(1)  # memory of its own
    assert len(list(DataLoader(Numbers(11), 3, drop_last=True, num_workers=workers))) == 3
    shuffled = [flat(DataLoader(Numbers(11), 3, shuffle=True, generator=1, num_workers=w)) for w in (workers, 0)]
    assert shuffled[0] == shuffled[1] != list(range(11))
    assert [x.tolist() for x in DataLoader(range(5), 2, collate_fn=holon.tensor, num_workers=workers)] == [
        [0, 1],
        [2, 3],
        [4],
    ]
    assert [b[1].tolist() for b in DataLoader(Numbers(5), batch_sampler=[[4, 1], [0]], num_workers=workers)] == [
        [4, 1],
        [0],
    ]
    assert list(DataLoader(range(3), batch_size=None, num_workers=workers)) == [0, 1, 2]
    assert sorted(x for b in DataLoader(Stream(10), 4, num_workers=workers) for x in b.tolist()) == list(range(10))
    assert list(DataLoader(Numbers(0), 2, num_workers=workers)) == []


def test_transfer_of_every_kind():
    samples = [
        {
            "f16": holon.ones(2, dtype=holon.float16),
            "bf16": holon.ones(2, dtype=holon.bfloat16),
            "flag": holon.tensor(True),
            "empty": holon.zeros(0, 3),
            "text": "äöü",
            "array": np.arange(3),
            "turned": holon.arange(6).reshape(2, 3).transpose(0, 1),
        }
    ] * 2
    (found,), (wanted,) = (list(DataLoader(samples, 2, num_workers=w)) for w in (1, 0))
    assert found.keys() == wanted.keys() and found["text"] == wanted["text"]
    for name in wanted.keys() - {"text"}:
        assert found[name].dtype == wanted[name].dtype and found[name].shape == wanted[name].shape
        assert found[name].tolist() == wanted[name].tolist()


class Broken(Numbers):
    def __getitem__(self, i):
        if i == 5:
            raise KeyError("no sample 5")
        if i == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        if i == 9:
            time.sleep(60)
        return super().__getitem__(i)


def test_errors_of_workers_are_raised_here():
    for n in (0, 2):
        with pytest.raises(KeyError, match="no sample 5") as e:
            list(DataLoader(Broken(6), 2, num_workers=n))
    assert "worker process 0" in str(e.value) and "Traceback" in str(e.value) and "in __getitem__" in str(e.value)

    def init(worker):
        raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"):
        list(DataLoader(Numbers(4), num_workers=1, worker_init_fn=init))


def test_dying_and_slow_workers_are_noticed():
    start = time.monotonic()
    with pytest.raises(RuntimeError, match=r"worker 1 \(process \d+\) was ended by SIGKILL"):
        list(DataLoader(Broken(8), sampler=[0, 7, 1], num_workers=2))
    with pytest.raises(RuntimeError, match="no batch within 0.3 s"):
        list(DataLoader(Broken(10), sampler=[9], num_workers=1, timeout=0.3))
    assert time.monotonic() - start < 100


def test_workers_know_who_they_are():
    class Who(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            info = get_worker_info()
            return (
                info.id,
                info.num_workers,
                info.seed,
                len(info.dataset),
                holon.env.get_world_size(),
                float(np.random.random()),
            )

    found = [[x.item() for x in batch] for batch in DataLoader(Who(), num_workers=2, generator=5)]
    assert [f[:2] for f in found] == [[0, 2], [1, 2], [0, 2], [1, 2]]
    assert found[1][2] == found[0][2] + 1 and found[0][3:5] == [4, 1]
    again = [[x.item() for x in batch] for batch in DataLoader(Who(), num_workers=2, generator=5)]
    assert found == again and len({f[5] for f in found}) == 4
    loader = DataLoader(Who(), num_workers=1, generator=5)
    assert [b[5].item() for b in loader] != [b[5].item() for b in loader]  # each epoch has other random numbers
    assert get_worker_info() is None


def test_persistent_workers_stay():
    class Pid(Numbers):
        def __getitem__(self, i):
            return os.getpid()

    loader = DataLoader(Pid(6), num_workers=2, persistent_workers=True)
    first, second = ({int(b) for b in loader} for _ in range(2))
    assert first == second and len(first) == 2
    stopped = iter(loader)
    next(stopped)
    del stopped
    assert len(list(loader)) == 6
    plain = DataLoader(Pid(6), num_workers=2)
    assert {int(b) for b in plain}.isdisjoint({int(b) for b in plain})
    stream = DataLoader(Stream(7), 2, num_workers=2, persistent_workers=True)
    assert [sorted(x for b in stream for x in b.tolist()) for _ in range(2)] == [list(range(7))] * 2


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("generator", [None, 7], ids=["drawn", "seeded"])
def test_goes_on_in_the_middle_of_an_epoch(workers, generator):
    def make():
        return DataLoader(Numbers(20), 3, shuffle=True, generator=generator, num_workers=workers)

    loader = make()
    flat(loader)
    it = iter(loader)
    before = [next(it)[1].tolist() for _ in range(3)]
    saved = loader.state_dict()
    rest = [b[1].tolist() for b in it]
    after = [b[1].tolist() for b in loader]
    other = make()
    other.load_state_dict(saved)
    assert other.state_dict()["batches"] == 3
    assert [b[1].tolist() for b in other] == rest and before[0] != rest[0]
    if generator is not None:  # the epochs that follow are those of the first one
        assert [b[1].tolist() for b in other] == after
        third = make()
        third.load_state_dict(loader.state_dict())
        assert flat(third) == flat(loader)
    stream = DataLoader(Stream(10), 2, num_workers=workers)
    it = iter(stream)
    next(it)
    state, rest = stream.state_dict(), [b.tolist() for b in it]
    other = DataLoader(Stream(10), 2, num_workers=workers)
    other.load_state_dict(state)
    assert [b.tolist() for b in other] == rest


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_goes_on_at_the_same_sample_with_another_batch_size(workers, shuffle):
    options = {"shuffle": shuffle, "generator": 5 if shuffle else None, "num_workers": workers}
    for before, after in [(3, 1), (3, 5), (4, 2), (1, 7), (5, 50)]:
        loader = DataLoader(Numbers(20), before, **options)
        flat(loader)
        it = iter(loader)
        next(it), next(it)
        saved = loader.state_dict()
        assert saved["samples"] == 2 * before
        rest = [i for b in it for i in b[1].tolist()]
        second = flat(loader)
        other = DataLoader(Numbers(20), after, **options)
        other.load_state_dict(saved)
        it = iter(other)
        first = next(it)[1].tolist()
        assert first == rest[:after] and other.state_dict()["samples"] == 2 * before + len(first)
        assert first + [i for b in it for i in b[1].tolist()] == rest
        assert flat(other) == second
        # The last batch of the epoch is what drop_last says it is.
        dropping = DataLoader(Numbers(20), after, drop_last=True, **options)
        dropping.load_state_dict(saved)
        assert flat(dropping) == rest[: len(rest) - len(rest) % after]


def test_what_cannot_go_on_at_the_same_sample_says_so():
    loader = DataLoader(Numbers(12), batch_sampler=[[0, 1, 2], [3, 4, 5], [6, 7]])
    it = iter(loader)
    next(it), next(it)
    saved = loader.state_dict()
    same = DataLoader(Numbers(12), batch_sampler=[[9, 9, 9], [9, 9, 9], [6, 7]])
    same.load_state_dict(saved)
    assert flat(same) == [6, 7]
    for other in ([[0, 1, 2, 3], [4, 5, 6, 7]], [[1, 2]]):
        changed = DataLoader(Numbers(12), batch_sampler=other)
        changed.load_state_dict(saved)
        with pytest.raises(ValueError, match="6 samples into the epoch"):
            flat(changed)

    def state_of(batch_size, workers):
        stream = DataLoader(Stream(12), batch_size, num_workers=workers)
        it = iter(stream)
        next(it)
        return stream.state_dict()

    other = DataLoader(Stream(12), 2)  # one reader: any batch size
    other.load_state_dict(state_of(3, 0))
    assert [b.tolist() for b in other] == [[3, 4], [5, 6], [7, 8], [9, 10], [11]]
    for (size, workers), (to_size, to_workers) in [((2, 2), (3, 2)), ((2, 2), (2, 0)), ((2, 0), (2, 2))]:
        with pytest.raises(ValueError, match="make the loader with them"):
            DataLoader(Stream(12), to_size, num_workers=to_workers).load_state_dict(state_of(size, workers))


@pytest.mark.parametrize("workers", [0, 2])
def test_global_batches_are_the_same_for_any_number_of_ranks(workers):
    def run(n, sbp, shape=None):
        def program(rank):
            grid = (
                holon.placement("cpu", np.arange(n).reshape(shape).tolist())
                if shape
                else holon.placement("cpu", list(range(n)))
            )
            loaded = []

            class Seen(Numbers):
                def __getitem__(self, i):
                    loaded.append(i)
                    return super().__getitem__(i)

            loader = GlobalDataLoader(
                Seen(10), 4, shuffle=True, generator=3, num_workers=workers, placement=grid, sbp=sbp
            )
            batches = [(x.full_value().numpy().tolist(), y.full_value().numpy().tolist()) for x, y in loader]
            assert all(x.sbp == (tuple(sbp) if isinstance(sbp, list) else (sbp,)) for x, y in loader)
            return batches, len(loaded)

        return holon.run_ranks(n, program)

    S, B = holon.sbp.split(0), holon.sbp.broadcast
    want = run(1, B)[0][0]
    assert [len(y) for x, y in want] == [4, 4, 2] and sorted(i for x, y in want for i in y) == list(range(10))
    for n, sbp, shape in [
        (2, S, None),
        (3, S, None),
        (2, B, None),
        (4, [S, B], (2, 2)),
        (4, [S, S], (2, 2)),
        (4, [B, S], (2, 2)),
    ]:
        for found, loaded in run(n, sbp, shape):
            assert found == want, (n, sbp)
            if not workers and n == 2 and sbp == S:
                assert loaded == 10  # half of two epochs


def test_global_batches_on_a_part_of_the_world():
    def program(rank):
        loader = DataLoader(Numbers(5), 4, placement=holon.placement("cpu", [2, 1]), sbp=holon.sbp.split(0))
        first, second = list(loader)
        assert first[0].shape == (4, 2) and second[0].shape == (1, 2) and second[1].dtype == holon.int64
        assert second[0].to_local().shape[0] == (1 if rank == 2 else 0) if rank else True
        return first[1].full_value().tolist() + second[1].full_value().tolist()

    assert holon.run_ranks(3, program) == [[0, 1, 2, 3, 4]] * 3


def test_mistakes_are_named():
    d = Numbers(3)
    for options, text in [
        ({"num_workers": -1}, "num_workers is -1"),
        ({"timeout": 1}, "Give num_workers"),
        ({"shuffle": True, "sampler": [0]}, "Give one"),
        ({"batch_sampler": [[0]], "batch_size": 2}, "Pass it alone"),
        ({"placement": holon.placement("cpu", [0])}, "must be given together"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"num_workers": 1, "prefetch_factor": 0}, "prefetch_factor"),
        ({"placement": holon.placement("cpu", [0]), "sbp": holon.sbp.partial_sum}, "partial sum"),
        ({"batch_size": None, "drop_last": True}, "no batches"),
        ({"batch_size": None, "padding_value": 0}, "is for batches"),
        ({"collate_fn": list, "padding_value": 0}, "no effect on local batches"),
    ]:
        with pytest.raises(ValueError, match=text):
            DataLoader(d, **options)
    with pytest.raises(ValueError, match="its own order"):
        DataLoader(Stream(3), shuffle=True)
    with pytest.raises(TypeError):
        len(DataLoader(Stream(3)))
    with pytest.raises(ValueError, match="'finished'"):
        DataLoader(d).load_state_dict({"epoch": 0, "batches": 1, "sampler": None})


PROGRAM = """
    import numpy as np
    import holon as flow
    from holon.utils.data import DataLoader, Dataset

    class Rows(Dataset):
        def __len__(self):
            return 64
        def __getitem__(self, i):
            return flow.full((1000,), float(i)).sum() * flow.ones(1000) / 1000, i

    p = flow.placement.all("cpu")
    keep = flow.ones(100000)  # memory of this process, which workers must leave alone
    total = flow.zeros(1, placement=p, sbp=flow.sbp.broadcast)
    for x, y in DataLoader(Rows(), 16, shuffle=True, num_workers=2, placement=p, sbp=flow.sbp.split(0)):
        noise = flow.randn(1000)
        total = total + (x.mean(1) - y.to(flow.float32)).abs().sum() + y.sum()
    assert keep.sum().item() == 100000
    if flow.env.get_rank() == 0:
        print("total", total.full_value().item())
    else:
        total.full_value()
    rest = iter(DataLoader(Rows(), 4, num_workers=2))
    next(rest)  # left behind: the program ends all the same
"""


@pytest.mark.parametrize("n", [1, 2, 3])
def test_workers_of_processes(tmp_path, n):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    start = time.monotonic()
    done = ranks.launch(program, n, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "total 2016.0" in done.stdout
    assert time.monotonic() - start < 30


def test_spawned_workers(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import holon as flow
        from holon.utils.data import DataLoader, TensorDataset

        if __name__ == "__main__":
            for method in ("spawn", "forkserver"):
                loader = DataLoader(TensorDataset(flow.arange(6)), 2, num_workers=2, multiprocessing_context=method)
                print([x.tolist() for x, in loader])
    """)
    )
    done = ranks.run(program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[[0, 1], [2, 3], [4, 5]]"] * 2


def test_readers(tmp_path):
    idx = bytes([0, 0, 8, 2]) + struct.pack(">II", 3, 2) + bytes(range(6))
    (tmp_path / "plain").write_bytes(idx)
    (tmp_path / "packed.gz").write_bytes(gzip.compress(idx))
    for name in ("plain", "packed.gz"):
        found = data.read_idx(tmp_path / name)
        assert found.dtype == holon.uint8 and found.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert data.IdxDataset(tmp_path / "plain", tmp_path / "packed.gz")[1][1].tolist() == [2, 3]
    (tmp_path / "cut.gz").write_bytes(gzip.compress(idx)[:-9])
    with pytest.raises(RuntimeError, match="damaged"):
        data.read_idx(tmp_path / "cut.gz")
    (tmp_path / "cut").write_bytes(idx[:-1])
    with pytest.raises(RuntimeError, match="truncated"):
        data.read_idx(tmp_path / "cut")

    (tmp_path / "a.txt").write_text("hello ")
    (tmp_path / "b.txt").write_text("world")
    files = data.files_below(str(tmp_path), ".txt")
    text = data.ByteDataset(files, 4)
    assert len(text) == 2 and bytes(text[1].tolist()) == b"o wo"
    pairs = data.ByteDataset(files, 4, stride=3, targets=True)
    assert len(pairs) == 3 and [bytes(t.tolist()) for t in pairs[1]] == [b"lo w", b"o wo"]
    corpus = data.ByteCorpus(files)
    assert len(corpus) == 11 and corpus.read(4, 3) == b"o w"
    with pytest.raises(IndexError):
        corpus.read(10, 2)
    for workers in (0, 1):
        (x, y), _ = DataLoader(pairs, 2, num_workers=workers)
        assert x.shape == (2, 4) and bytes(y[0].tolist()) == b"ello"
