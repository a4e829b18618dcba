"""Pinned host memory: what makes it, who shares it, and copies from and to it that the host does not wait for."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from holon.utils.data import DataLoader, TensorDataset

import holon as flow

MiB = 1 << 20


def stats():
    return flow._C.pinned_memory_stats()


def test_pin_memory_keeps_the_values_and_says_so():
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    x = flow.from_numpy(a)
    assert not x.is_pinned()
    y = x.pin_memory()
    assert y.is_pinned() and y.device == flow.device("cpu")
    assert y.pin_memory() is y or y.pin_memory().data_ptr() == y.data_ptr()
    assert np.array_equal(y.numpy(), a)
    z = flow.from_numpy(a).t().pin_memory()
    assert z.is_pinned() and np.array_equal(z.numpy(), a.T)
    assert y[1:, ::2].is_pinned() and not (y + 1).is_pinned()
    assert not y.cuda().is_pinned()
    w = flow.ones(3, requires_grad=True)
    w.pin_memory().sum().backward()
    assert w.grad.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "make",
    [
        lambda **o: flow.empty(3, 4, **o),
        lambda **o: flow.zeros(3, 4, **o),
        lambda **o: flow.ones(3, 4, **o),
        lambda **o: flow.full((3, 4), 2.0, **o),
        lambda **o: flow.arange(12, **o),
        lambda **o: flow.eye(3, **o),
        lambda **o: flow.linspace(0, 1, 5, **o),
        lambda **o: flow.logspace(0, 1, 5, **o),
        lambda **o: flow.rand(3, 4, **o),
        lambda **o: flow.randn(3, 4, **o),
        lambda **o: flow.randint(0, 9, (3, 4), **o),
        lambda **o: flow.randperm(7, **o),
        lambda **o: flow.zeros_like(flow.ones(3), **o),
        lambda **o: flow.empty_like(flow.ones(3), **o),
        lambda **o: flow.full_like(flow.ones(3), 2, **o),
        lambda **o: flow.randn_like(flow.ones(3), **o),
        lambda **o: flow.tensor([1.0, 2.0], **o),
        lambda **o: flow.ones(2).new_zeros(3, 4, **o),
        lambda **o: flow.ones(2).new_full((3,), 2.0, **o),
        lambda **o: flow.ones(2).new_tensor([1, 2], **o),
        lambda **o: flow.hann_window(8, **o),
    ],
)
def test_creating_functions_pin(make):
    flow.manual_seed(3)
    x = make(pin_memory=True)
    assert x.is_pinned()
    flow.manual_seed(3)
    y = make()
    assert not y.is_pinned() and x.shape == y.shape and x.dtype == y.dtype


def test_values_of_what_was_made_pinned_are_those_without():
    flow.manual_seed(5)
    x = flow.randn(100, pin_memory=True)
    flow.manual_seed(5)
    assert flow.equal(x, flow.randn(100))
    assert flow.arange(5, pin_memory=True).tolist() == [0, 1, 2, 3, 4]
    assert flow.zeros(3, pin_memory=True, requires_grad=True).requires_grad


def test_a_device_and_pinned_memory_exclude_each_other():
    with pytest.raises(RuntimeError, match="ones: pin_memory was requested together with cuda:0"):
        flow.ones(3, device="cuda:0", pin_memory=True)
    with pytest.raises(RuntimeError, match=r"pin_memory: the tensor .*3.* is on cuda:0"):
        flow.ones(3, device="cuda:0").pin_memory()


def test_numpy_and_dlpack_share_pinned_memory():
    x = flow.zeros(5, pin_memory=True)
    a = x.numpy()
    a[:] = 7
    assert x.tolist() == [7] * 5
    b = np.from_dlpack(x)
    address = a.ctypes.data
    assert b.ctypes.data == address == x.data_ptr()
    del x, b
    y = flow.zeros(5, pin_memory=True)  # not in the memory that numpy still has
    assert y.numpy().ctypes.data != address
    assert a[1] == 7


def test_memory_is_counted_and_used_again():
    flow.cuda.empty_cache()
    before = stats()["in_use_bytes"]
    x = flow.zeros(3 * MiB, dtype=flow.uint8, pin_memory=True)
    address = x.data_ptr()
    assert stats()["in_use_bytes"] - before >= 3 * MiB
    del x
    assert stats()["in_use_bytes"] == before and stats()["cached_bytes"] >= 3 * MiB
    y = flow.zeros(3 * MiB, dtype=flow.uint8, pin_memory=True)
    assert y.data_ptr() == address
    del y
    flow.cuda.empty_cache()
    assert stats()["cached_bytes"] < 3 * MiB


@pytest.mark.parametrize("n", [1, 1000, 3 * MiB])
@pytest.mark.parametrize(
    "move",
    [
        lambda x: x.to("cuda:0", non_blocking=True),
        lambda x: x.cuda(non_blocking=True),
        lambda x: x.cuda(0, True),
        lambda x: x.to("cuda:0", True),
        lambda x: x.cuda(),
        lambda x: flow.empty(x.shape, dtype=x.dtype, device="cuda:0").copy_(x, non_blocking=True),
    ],
)
def test_copies_to_the_device(move, n):
    a = np.arange(n, dtype=np.float32)
    y = move(flow.from_numpy(a).pin_memory())
    assert np.array_equal((y + 1).cpu().numpy(), a + 1)


def test_a_blocking_copy_from_pinned_memory_leaves_its_source_free():
    x = flow.zeros(1000, pin_memory=True)
    out = []
    for i in range(10):
        x.fill_(i)
        out.append(x.to("cuda:0"))
    x.fill_(-1)
    for i, y in enumerate(out):
        assert (y == i).all().item()


def test_a_tensor_that_is_freed_during_its_copy_keeps_its_memory():
    out = []
    for i in range(50):
        x = flow.full((10_000,), float(i), pin_memory=True)
        out.append(x.to("cuda:0", non_blocking=True))
        del x  # the next one must not get this memory before the copy is done
    for i, y in enumerate(out):
        assert (y == i).all().item(), i
    flow.cuda.synchronize()
    flow.cuda.empty_cache()


def test_copies_from_the_device_into_pinned_memory():
    a = np.arange(100_000, dtype=np.float32)
    x = flow.from_numpy(a).cuda()
    y = (x * 2).to("cpu", non_blocking=True)
    assert y.is_pinned()
    z = flow.zeros(100_000, pin_memory=True)
    z.copy_(x + 1, non_blocking=True)
    flow.cuda.synchronize()
    assert np.array_equal(y.numpy(), a * 2) and np.array_equal(z.numpy(), a + 1)
    # Without it, and into memory that is not pinned, a copy is there when the call returns.
    assert not x.to("cpu").is_pinned()
    w = flow.zeros(100_000)
    w.copy_(x, non_blocking=True)
    assert np.array_equal(w.numpy(), a)


def test_other_dtypes_strides_and_windows_arrive_as_they_should():
    a = np.arange(24, dtype=np.float32).reshape(4, 6)
    x = flow.from_numpy(a).pin_memory()
    y = flow.empty(4, 6, dtype=flow.float64, device="cuda:0")
    y.copy_(x, non_blocking=True)
    assert np.array_equal(y.cpu().numpy(), a)
    assert np.array_equal(x.t().to("cuda:0", non_blocking=True).cpu().numpy(), a.T)
    assert np.array_equal(x[1:3, 2:].to("cuda:0", non_blocking=True).cpu().numpy(), a[1:3, 2:])
    z = flow.zeros(6, 4, pin_memory=True)
    z.t().copy_(x.cuda(), non_blocking=True)
    flow.cuda.synchronize()
    assert np.array_equal(z.numpy(), a.T)


def test_gradients_go_through_copies_that_are_not_waited_for():
    x = flow.ones(5, requires_grad=True)
    (x.pin_memory().to("cuda:0", non_blocking=True) * 3).sum().backward()
    assert x.grad.tolist() == [3] * 5


def test_copy_into_the_same_memory_and_broadcast():
    x = flow.arange(6, dtype=flow.float32)
    x[1:].copy_(x[:-1].clone())
    assert x.tolist() == [0, 0, 1, 2, 3, 4]
    x[1:].copy_(x[:-1])
    assert x.tolist() == [0, 0, 0, 1, 2, 3]
    y = flow.zeros(2, 3).copy_(flow.tensor([1, 2, 3]))
    assert y.tolist() == [[1, 2, 3]] * 2


def test_modules_move_without_waiting():
    m = flow.nn.Linear(3, 2)
    want = m(flow.ones(1, 3)).detach().numpy()
    for value in m.parameters():
        value.data = value.data.pin_memory()
    m.to("cuda:0", non_blocking=True)
    assert np.allclose(m(flow.ones(1, 3, device="cuda:0")).detach().cpu().numpy(), want, rtol=1e-5, atol=1e-6)


def test_global_tensors_pin_their_parts():
    p = flow.placement("cpu", ranks=[0])
    g = flow.arange(6, placement=p, sbp=flow.sbp.split(0))
    assert not g.is_pinned()
    h = g.pin_memory()
    assert h.is_global and h.is_pinned() and h.to_local().is_pinned() and h.sbp == g.sbp
    assert h.to_local().tolist() == list(range(6))
    d = h.to("cuda", non_blocking=True)
    assert d.placement.type == "cuda" and d.to_local().tolist() == list(range(6))
    assert flow.zeros(4, placement=p, sbp=flow.sbp.broadcast, pin_memory=True).is_pinned()
    with pytest.raises(RuntimeError, match="pin_memory was requested together with cuda"):
        flow.zeros(4, placement=flow.placement("cuda", ranks=[0]), sbp=flow.sbp.broadcast, pin_memory=True)


@pytest.mark.parametrize("workers", [0, 2])
def test_loader(workers):
    data = np.arange(40, dtype=np.float32).reshape(20, 2)
    loader = DataLoader(
        TensorDataset(flow.from_numpy(data), flow.arange(20)), batch_size=6, pin_memory=True, num_workers=workers
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batches = list(loader)
    assert len(batches) == 4
    for i, (x, y) in enumerate(batches):
        assert x.is_pinned() and y.is_pinned()
        assert np.array_equal(x.to("cuda:0", non_blocking=True).cpu().numpy(), data[6 * i : 6 * i + 6])
        assert y.tolist() == list(range(20))[6 * i : 6 * i + 6]


class Custom:
    def __init__(self, x, pinned=False):
        self.x, self.pinned = x, pinned

    def pin_memory(self):
        return Custom(self.x.pin_memory(), True)


def test_loader_pins_what_knows_how_and_what_is_nested():
    samples = [{"a": flow.ones(2), "b": (1, "word")} for _ in range(4)]
    batch = next(iter(DataLoader(samples, batch_size=2, pin_memory=True)))
    assert batch["a"].is_pinned() and batch["b"][0].is_pinned() and batch["b"][1] == ["word", "word"]
    batch = next(iter(DataLoader(samples, batch_size=2, pin_memory=True, collate_fn=lambda s: Custom(s[0]["a"]))))
    assert batch.pinned and batch.x.is_pinned()


def test_loader_of_global_batches():
    data = flow.arange(12)
    for kind, pinned in (("cpu", True), ("cuda", False)):
        p = flow.placement(kind, ranks=[0])
        loader = DataLoader(TensorDataset(data), batch_size=4, pin_memory=True, placement=p, sbp=flow.sbp.split(0))
        batches = [x for (x,) in loader]
        assert [x.is_pinned() for x in batches] == [pinned] * 3
        assert [x.to_local().cpu().tolist() for x in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
        assert batches[0].placement.type == kind and (batches[0].to_local() + 1).sum().item() == 10


LOADER_TEST = Path(__file__).resolve().parents[2] / "build/dev/tests/data_test"


@pytest.mark.skipif(not LOADER_TEST.exists(), reason="data_test is not built")
def test_the_loader_of_cpp():
    done = subprocess.run([LOADER_TEST, "--gtest_filter=Loader.*"], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and "PASSED" in done.stdout, done.stdout + done.stderr


LAZY = """
import numpy as np
import holon as flow
a = flow.full((5000,), 1.0, pin_memory=True)
b = a.to("cuda:0", non_blocking=True)
a.fill_(2.0)  # too early, on purpose: the copy is not done before somebody waits
assert (b == 2.0).all().item(), "the copy was waited for"
x = flow.full((5000,), 3.0, device="cuda:0")
y = x.to("cpu", non_blocking=True)
assert not np.all(y.numpy() == 3.0), "the copy to the host was waited for"
flow.cuda.synchronize()
assert np.all(y.numpy() == 3.0)
seen = set()
for i in range(20):
    t = flow.full((5000,), float(i), pin_memory=True)
    seen.add(t.data_ptr())
    t.to("cuda:0", non_blocking=True)
    del t
assert len(seen) == 20, "memory was used again before its copy was done"
flow.cuda.synchronize()
assert flow.full((5000,), 0.0, pin_memory=True).data_ptr() in seen
flow.full((5000,), 1.0, pin_memory=True).to("cuda:0", non_blocking=True)
flow.cuda.empty_cache()  # gives segments back: not before their copies are done
flow.cuda.synchronize()
print("fine")
"""

FULL = """
import holon as flow
MiB = 1 << 20
x = flow.zeros(5 * MiB, dtype=flow.uint8, pin_memory=True)
y = x.to("cuda:0", non_blocking=True)
del x
z = flow.zeros(6 * MiB, dtype=flow.uint8, pin_memory=True)  # waits for the copy, and gives the block of 5 MiB back
assert y.sum().item() == 0
try:
    flow.zeros(5 * MiB, dtype=flow.uint8, pin_memory=True)
except RuntimeError as e:
    print(e)
assert z.is_pinned() and flow.ones(1000).pin_memory().is_pinned()
"""

FORK = """
import os
import holon as flow
x = flow.ones(1000, pin_memory=True)
x.cuda(non_blocking=True)
flow.cuda.synchronize()
child = os.fork()
if child == 0:
    assert x.sum().item() == 1000
    try:
        flow.ones(3).pin_memory()
    except RuntimeError as e:
        assert "forked" in str(e), e
        del x  # the parent's memory: left alone
        os._exit(0)
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
assert x.sum().item() == 1000
print("fine")
"""

WORLDS = """
import holon as flow

def rank(r):
    x = flow.ones(1000).cuda() + r
    return x.sum().item()

for i in range(20):
    assert flow.run_ranks(2, rank) == [1000.0, 2000.0]
print("fine")
"""

NONE = """
import warnings
import holon as flow
from holon.utils.data import DataLoader
x = flow.ones(2, 3)
assert not x.is_pinned()
for call in (lambda: x.pin_memory(), lambda: flow.empty(2, 3, pin_memory=True)):
    try:
        call()
        raise SystemExit("no error")
    except RuntimeError as e:
        assert "pin_memory" in str(e) and "[2, 3]" in str(e) and "HOLON_SIMULATE" in str(e), e
        assert "no cuda device" not in str(e).split("there is")[0], e
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    batches = list(DataLoader([1.0, 2.0, 3.0], batch_size=2, pin_memory=True))
assert len(batches) == 2 and not batches[0].is_pinned()
assert any("pin_memory=True" in str(w.message) for w in seen), seen
print("fine")
"""


def run(program, **environment):
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


EMULATED = os.environ.get("HOLON_CUDA_LIBRARY", "").endswith("emulated.so")


@pytest.mark.skipif(not EMULATED, reason="work is late on the emulator only")
def test_copies_are_not_waited_for_and_memory_waits_for_copies():
    assert "fine" in run(LAZY, EMULATED_LAZY="1")


@pytest.mark.skipif(not EMULATED, reason="the emulator's limit")
@pytest.mark.parametrize("lazy", ["0", "1"])
def test_what_cannot_be_pinned_is_an_error_that_names_sizes(lazy):
    out = run(FULL, EMULATED_PINNED_MB="11", EMULATED_LAZY=lazy)
    assert "out of pinned memory: 5242880 bytes were requested" in out and "ulimit -l" in out


@pytest.mark.skipif(not EMULATED, reason="the emulator's limit")
def test_ranks_that_end_leave_their_staging_memory_to_others():
    assert "fine" in run(WORLDS, EMULATED_PINNED_MB="100")  # 16 MiB for each of 40 ranks would be more


@pytest.mark.skipif(not EMULATED, reason="CUDA does not work in a process that was forked")
def test_a_forked_process_leaves_pinned_memory_alone():
    assert "fine" in run(FORK)


def test_without_a_device():
    assert "fine" in run(NONE, HOLON_CUDA_LIBRARY="/nowhere/libholon_cuda.so")


def test_simulated_devices_pin_nothing_and_run_the_same():
    program = (
        "import holon as flow; x = flow.ones(3).pin_memory(); "
        "print(x.to('cuda', non_blocking=True).sum().item(), x.is_pinned())"
    )
    assert run(program, HOLON_CUDA_LIBRARY="/nowhere/libholon_cuda.so", HOLON_SIMULATE="cuda").split() == [
        "3.0",
        "False",
    ]
