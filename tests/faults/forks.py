"""Ranks that fork in all ways, with children that do what they like: the ranks' values and their world are to stay as
they are, and a child sees what there was when it was made. For the launcher: forks.py FIRST_SEED ROUNDS HOSTS, where
ranks play at so many hosts. Prints a line for each round of a rank."""

import ctypes
import multiprocessing
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings

import numpy as np
from holon.utils.data import DataLoader

import holon as flow

LIMIT_S = 120  # who takes longer hangs
WAYS = ("os.fork", "thread", "process", "pool", "loader", "exec", "subprocess")
ENDS = ("_exit", "exit", "exit 3", "raise", "C exit", "kill", "terminate", "abort", "exec")


class Kept:
    """Tensors, local and global, and the values that they are to have here."""

    def __init__(self, rng):
        self.rng = rng
        self.tensors, self.values = [], []
        for _ in range(4):
            self.add()
        ranks = flow.placement("cpu", list(range(flow.env.get_world_size())))
        rows = np.arange(24, dtype=np.float32).reshape(8, 3)
        self.whole = flow.tensor(rows).to_global(ranks, flow.sbp.broadcast).to_global(ranks, flow.sbp.split(0))
        self.part = self.whole.to_local().numpy().copy()

    def add(self):
        size = self.rng.choice([1, 7, 1000, 40_000, 400_000])
        value = np.full(size, float(self.rng.randrange(1000)), np.float32)
        self.tensors.append(flow.tensor(value))
        self.values.append(value)

    def change(self):
        i = self.rng.randrange(len(self.tensors))
        self.values[i] = self.values[i] + 1
        self.tensors[i].add_(1)

    def replace(self):
        """Another tensor in memory that was just freed."""
        i = self.rng.randrange(len(self.tensors))
        del self.tensors[i], self.values[i]
        self.add()

    def check(self, who):
        for i, (t, v) in enumerate(zip(self.tensors, self.values)):
            found = t.numpy()
            assert np.array_equal(found, v), f"{who}: tensor {i} of {v.size} is {found[:3]}, and should be {v[:3]}"
        assert np.array_equal(self.whole.to_local().numpy(), self.part), f"{who}: the part of the global tensor"
        assert np.array_equal((self.whole * 2).to_local().numpy(), self.part * 2), f"{who}: twice the part"


def compute(rng):
    """A product that is large enough for several threads."""
    a = np.arange(300 * 200, dtype=np.float32).reshape(300, 200) % 7
    b = np.arange(200 * 100, dtype=np.float32).reshape(200, 100) % 5
    assert np.array_equal(flow.matmul(flow.tensor(a), flow.tensor(b)).numpy(), a @ b)
    n = rng.choice([100, 300_000])
    assert flow.ones(n).sum().item() == n


def communicate(rng, kept):
    world = flow.env.get_world_size()
    ranks = flow.placement("cpu", list(range(world)))
    call = rng.choice(
        [
            flow.comm.barrier,
            lambda: flow.comm.all_reduce(flow.ones(rng.choice([3, 100_000]))),
            lambda: kept.whole.to_global(ranks, flow.sbp.broadcast),
            lambda: flow.ones(4).to_global(ranks, flow.sbp.split(0)),
            lambda: kept.whole.sum().to_global(ranks, flow.sbp.broadcast),
        ]
    )
    try:
        call()
    except RuntimeError as e:
        assert "was forked from rank" in str(e), e
    else:
        raise AssertionError("a child has communicated")


def grandchild(rng, kept):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            kept.check("grandchild")
            kept.change()
            compute(rng)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0, "the grandchild failed"
    kept.check("child, after its own")


def act_as_child(rng, kept):
    kept.check("child")
    acts = [
        lambda: [kept.change() for _ in range(3)],
        kept.replace,
        lambda: compute(rng),
        lambda: communicate(rng, kept),
        lambda: grandchild(rng, kept),
        lambda: flow._C.set_num_threads(rng.randint(1, 3)),
        lambda: time.sleep(rng.uniform(0, 0.02)),
        flow.cpu.empty_cache,
    ]
    for act in rng.choices(acts, k=rng.randint(2, 8)):
        act()
        kept.check("child")


def end(how):
    if how == "exit":
        raise SystemExit(0)
    if how == "exit 3":
        raise SystemExit(3)
    if how == "raise":
        raise ValueError("a child that fails")
    if how == "C exit":
        ctypes.CDLL(None).exit(0)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "terminate":
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    if how == "abort":
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
        os.abort()
    if how == "exec":
        os.execv("/bin/true", ["true"])
    os._exit(0)


class Child:
    """A process that acts, tells what came of it, and ends in some way."""

    def __init__(self, way, rng, kept):
        self.out, out = os.pipe()
        how = rng.choice(ENDS)
        self.name = f"{way}, {how}"
        self.process, self.thread, self.pid = None, None, None

        def main():
            os.close(self.out)
            signal.alarm(LIMIT_S)
            try:
                act_as_child(rng, kept)
                said = "ok"
            except BaseException:
                said = traceback.format_exc()
            os.write(out, said.encode()[-60_000:])
            os.close(out)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 2)
            end(how)

        def fork():
            pid = os.fork()
            if pid == 0:
                main()
            self.pid = pid

        if way == "process":
            self.process = multiprocessing.get_context("fork").Process(target=main)
            self.process.start()
        elif way == "thread":
            self.thread = threading.Thread(target=fork)
            self.thread.start()
            self.thread.join()
        else:
            fork()
        os.close(out)

    def wait(self):
        said, until = b"", time.monotonic() + LIMIT_S
        while select.select([self.out], [], [], max(0, until - time.monotonic()))[0]:
            part = os.read(self.out, 65536)
            if not part:
                break
            said += part
        os.close(self.out)
        if said != b"ok":
            for pid in filter(None, [self.pid, self.process and self.process.pid]):
                os.kill(pid, signal.SIGKILL)
        if self.process:
            self.process.join()
            code = self.process.exitcode
        else:
            code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        assert code != -signal.SIGALRM, f"a child ({self.name}) hung at its end, after it had said {said.decode()!r}"
        assert said == b"ok", f"a child ({self.name}): {said.decode() or 'said nothing; it hung or crashed'}"


class Rows:
    """A dataset that reads a rank's tensors, and writes into them."""

    def __init__(self, kept):
        self.kept, self.first = kept, [float(v[0]) for v in kept.values]

    def __len__(self):
        return len(self.first)

    def __getitem__(self, i):
        t = self.kept.tensors[i]
        found = t.numpy()[0]
        assert found in (self.first[i], -5.0), (found, self.first[i])
        t.fill_(-5)
        assert flow.ones(100_000).sum().item() == 100_000
        return np.float32(self.first[i])


def fork_once(way, rng, kept):
    """What is to be waited for."""
    if way == "loader":
        expected = [float(v[0]) for v in kept.values]
        batches = iter(DataLoader(Rows(kept), batch_size=1, num_workers=2))
        found = [float(next(batches).numpy()[0])]  # the workers are made for it

        def wait():
            found.extend(float(b.numpy()[0]) for b in batches)
            assert found == expected, f"a loader's workers: {found}, and not {expected}"

        return wait
    if way == "pool":
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(_total, [kept] * 0 + [10, 200_000]) == [10, 200_000]
        return lambda: None
    if way == "exec":
        subprocess.run(["true"], check=True)
        return lambda: None
    if way == "subprocess":
        subprocess.run(["true"], check=True, preexec_fn=lambda: None)
        return lambda: None
    return Child(way, rng, kept).wait


def _total(n):
    return int(flow.ones(n).sum().item())


def one_round(seed):
    rank, world = flow.env.get_rank(), flow.env.get_world_size()
    together, own = random.Random(seed), random.Random(seed * 1009 + rank)
    kept = Kept(own)
    flow._C.set_num_threads(own.randint(1, 3))
    compute(own)
    who_forks = together.choice([(0,), (1,), tuple(range(world))])
    waits = []
    if rank in who_forks:
        for _ in range(own.randint(1, 2)):
            waits.append(fork_once(own.choice(WAYS), own, kept))
    for _ in range(together.randint(1, 4)):
        for _ in range(own.randint(0, 3)):
            own.choice([kept.change, kept.replace])()
        size = together.choice([1, 2000, 300_000])
        total = flow.full((size,), float(rank + 1))
        flow.comm.all_reduce(total)
        assert np.all(total.numpy() == world * (world + 1) / 2), total
        kept.check("rank")
    for wait in waits:
        wait()
    kept.check("rank, at the end")
    whole = kept.whole.to_global(kept.whole.placement, flow.sbp.broadcast).to_local().numpy()
    assert np.array_equal(whole, np.arange(24, dtype=np.float32).reshape(8, 3)), whole
    flow.comm.barrier()


def main():
    warnings.simplefilter("ignore")  # newer Pythons warn of threads at a fork
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    first, rounds, hosts = map(int, sys.argv[1:4])
    os.environ["HOLON_HOST"] = f"host{flow.env.get_rank() % hosts}"  # read when the ranks meet
    for seed in range(first, first + rounds):
        try:
            one_round(seed)
        except Exception as e:
            raise RuntimeError(f"the round of seed {seed} was bad: {e}") from e
        print(f"rank {flow.env.get_rank()} of seed {seed} is well", flush=True)


if __name__ == "__main__":
    main()
