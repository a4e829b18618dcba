"""Processes that fork: the child has what its parent had, one thread, and no ranks;
nothing that it does reaches its parent."""

import glob
import subprocess
import sys

import pytest
from harness.ports import free_port
from harness.ranks import ROOT, environment, launch

PROGRAM = ROOT / "tests/faults/forks.py"
# Of a child that hangs its parent says so after two minutes.
SECONDS = 280


def run(program, tmp_path, **extra):
    path = tmp_path / "program.py"
    path.write_text(program)
    return subprocess.run(
        [sys.executable, path], env=environment(**extra), capture_output=True, text=True, timeout=SECONDS
    )


@pytest.mark.parametrize("first, hosts, network", [(100, 1, ""), (200, 1, ""), (300, 2, "gloo"), (300, 2, "ucx")])
def test_random_forks_leave_ranks_as_they_are(first, hosts, network):
    extra = {"HOLON_NETWORK": network} if network else {}
    done = launch(PROGRAM, 2, timeout=SECONDS, arguments=[first, 5, hosts], HOLON_COMM_TIMEOUT_S=200, **extra)
    if "ranks on several hosts need" in done.stderr:
        pytest.skip(f"this build has no {network}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" is well") == 10


SNAPSHOT = """
import os, sys
import numpy as np
import holon as flow

rank = flow.env.get_rank()
x = flow.full((1000,), 3.0)
y = flow.full((100_000,), 5.0)
flow.comm.barrier()
for way in range(2):
    go_in, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.read(go_in, 1)
            assert np.all(x.numpy() == 3) and np.all(y.numpy() == 5), (x.numpy()[0], y.numpy()[0])
            x.fill_(7)
            y.add_(1)
            assert np.all(x.numpy() == 7) and np.all(y.numpy() == 6)
            for call in (flow.comm.barrier, lambda: flow.comm.all_reduce(flow.ones(10**5))):
                try:
                    call()
                except RuntimeError as e:
                    says = f"process {os.getpid()} was forked from rank {rank} of 2 (process {os.getppid()})"
                    assert says in str(e), e
                else:
                    raise AssertionError("it has communicated")
            assert flow._C.num_threads() == 1
            code = 0
        except BaseException as e:
            print("the child:", repr(e), flush=True)
        finally:
            os._exit(code)
    # Its memory is used anew while the child looks at it.
    kept, kept_y = x, y
    kept.fill_(4.0)
    del y
    other = flow.full((100_000,), 8.0)
    os.write(go, b"g")
    assert os.waitpid(pid, 0)[1] == 0
    assert np.all(kept.numpy() == 4) and np.all(other.numpy() == 8) and np.all(kept_y.numpy() == 5)
    x, y = flow.full((1000,), 3.0), kept_y
flow.comm.all_reduce(other)
assert np.all(other.numpy() == 16)
print("well", flush=True)
"""


def test_a_child_has_what_its_parent_had(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(SNAPSHOT)
    done = launch(path, 2, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("well") == 2


LARGE = """
import multiprocessing, os
import numpy as np
import holon as flow
from holon.utils.data import DataLoader, TensorDataset

flow.comm.barrier()
x = flow.arange(3 << 20)  # 24 MiB of int64
pid = os.fork()
if pid == 0:
    code = 1
    try:
        flow.ones(3)
    except RuntimeError as e:
        text = str(e)
        assert "cannot create tensors: its tensors are 24 MiB, and HOLON_FORK_COPY_MB is 8" in text, text
        assert "was forked from rank" in text, text
        code = 0
    finally:
        os._exit(code)
assert os.waitpid(pid, 0)[1] == 0
# A loader's workers read the dataset where it is.
rows = [int(b[0].numpy().sum()) for b in DataLoader(TensorDataset(x[:8]), batch_size=4, num_workers=2)]
assert rows == [6, 22], rows
flow.comm.barrier()
print("well", flush=True)
"""


def test_too_much_to_copy_is_said_by_the_childs_first_tensor(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(LARGE)
    done = launch(path, 2, timeout=SECONDS, HOLON_FORK_COPY_MB=8)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("well") == 2


WORKERS = """
import holon as flow
from holon.utils.data import DataLoader, Dataset

rank = flow.env.get_rank()
ranks = flow.placement("cpu", [0, 1])
rows = flow.arange(5).to_global(ranks, flow.sbp.broadcast).to_global(ranks, flow.sbp.split(0))  # 3 and 2

class Numbers(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        assert (rows * 2).to_local().tolist() == [[0, 2, 4], [6, 8]][rank]
        try:
            rows.to_global(ranks, flow.sbp.broadcast)
        except RuntimeError as e:
            assert f"was forked from rank {rank} of 2" in str(e), e
        else:
            raise AssertionError("a worker has communicated")
        return 10 * flow.env.get_rank() + i

loaded = [b.tolist() for b in DataLoader(Numbers(), 2, num_workers=2)]
assert loaded == [[10 * rank, 10 * rank + 1], [10 * rank + 2, 10 * rank + 3]]
flow.comm.barrier()
print("well", flush=True)
"""


def test_workers_are_of_their_rank(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(WORKERS)
    done = launch(path, 2, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("well") == 2


THREADS = """
import os, signal
import numpy as np
import holon as flow

flow._C.set_num_threads(3)
a = flow.tensor(np.arange(512 * 512, dtype=np.float32).reshape(512, 512) % 5)
expected = flow.matmul(a, a).numpy()
flow.ones(1 << 20).sum()
for threads in (1, 2):
    pid = os.fork()
    if pid == 0:
        signal.alarm(120)
        code = 1
        try:
            assert flow._C.num_threads() == 1
            flow._C.set_num_threads(threads)
            assert np.array_equal(flow.matmul(a, a).numpy(), expected)
            assert flow.ones(1 << 20).sum().item() == 1 << 20
            code = 0
        finally:
            os._exit(code)
    assert np.array_equal(flow.matmul(a, a).numpy(), expected)
    status = os.waitpid(pid, 0)[1]
    assert status == 0, "the child hung" if os.WIFSIGNALED(status) else status
    assert flow._C.num_threads() == 3
print("well")
"""
LLVM = sorted(glob.glob("/usr/lib/llvm-*/lib/libomp.so.5") + glob.glob("/usr/lib/*-linux-gnu/libomp.so.5"))


@pytest.mark.parametrize("runtime", ["as built", "LLVM"])
def test_a_child_of_a_process_with_threads_does_not_hang(tmp_path, runtime):
    extra = {}
    if runtime == "LLVM":
        if not LLVM:
            pytest.skip("LLVM's OpenMP runtime (Debian's libomp5) is not installed")
        extra = {"LD_PRELOAD": LLVM[-1]}
    done = run(THREADS, tmp_path, **extra)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "well\n"


BATCHES = """
import os
import numpy as np
import holon as flow
from holon.utils.data import DataLoader, TensorDataset

(batch,) = next(iter(DataLoader(TensorDataset(flow.full((50_000,), 3.0)), batch_size=50_000, num_workers=1)))
pid = os.fork()
if pid == 0:
    batch.fill_(7)
    os._exit(0 if batch.numpy().min() == 7 else 1)
assert os.waitpid(pid, 0)[1] == 0
assert batch.numpy().min() == batch.numpy().max() == 3
batch.add_(1)
assert batch.numpy().min() == batch.numpy().max() == 4
print("well")
"""


def test_batches_of_workers_are_no_childs_to_write(tmp_path):
    done = run(BATCHES, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "well\n"


def test_children_of_one_rank_alone_are_free(tmp_path):
    """A process without ranks beside it may fork ranks of a world:
    they meet, and each has memory that the others reach."""
    program = """
import os, sys
import holon as flow
for rank in range(2):
    pid = os.fork()
    if pid == 0:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2",
                          MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[1])
        code = 1
        try:
            x = flow.full((100_000,), float(rank + 1))
            flow.comm.all_reduce(x)
            assert x.numpy().min() == x.numpy().max() == 3
            flow.comm.barrier()
            code = 0
        finally:
            os._exit(code)
assert [os.wait()[1] for _ in range(2)] == [0, 0]
print("well")
"""
    path = tmp_path / "program.py"
    path.write_text(program)
    done = subprocess.run(
        [sys.executable, path, str(free_port())],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "well\n"
