"""Memory of a device: what is counted, used again and given back, copies in the stream's order,
and what the errors say."""

import subprocess
import sys

import numpy as np
import pytest
from harness import ranks

import holon as flow

MiB = 1 << 20


def stats():
    return flow._C.cuda_memory_stats(0)


def test_memory_is_counted_and_used_again():
    flow.cuda.empty_cache()
    before = stats()["in_use_bytes"]
    x = flow.zeros(3 * MiB, dtype=flow.uint8, device="cuda:0")
    assert stats()["in_use_bytes"] - before >= 3 * MiB
    assert flow.cuda.memory_allocated() - before >= 3 * MiB
    del x
    assert stats()["in_use_bytes"] == before
    assert stats()["cached_bytes"] >= 3 * MiB
    reserved = flow.cuda.memory_reserved()
    y = flow.zeros(3 * MiB, dtype=flow.uint8, device="cuda:0")
    assert flow.cuda.memory_reserved() == reserved
    flow.cuda.reset_peak_memory_stats()
    z = flow.zeros(5 * MiB, dtype=flow.uint8, device="cuda:0")
    del z
    assert 8 * MiB <= flow.cuda.max_memory_allocated() - before < 10 * MiB
    del y
    flow.cuda.empty_cache()
    assert flow.cuda.memory_reserved() < reserved


def test_out_of_memory_names_sizes_and_leaves_the_rest_usable():
    x = flow.ones(1000, device="cuda:0")
    with pytest.raises(
        RuntimeError, match=r"out of memory on cuda:0: .* MiB .* were requested; .* in use and .* cached.* free of"
    ):
        flow.empty(1 << 45, dtype=flow.uint8, device="cuda:0")
    assert (x + 1).sum().item() == 2000


@pytest.mark.parametrize("n", [1, 63, 1000, (4 << 20) // 4, 5 * MiB + 3])
def test_large_and_small_copies_to_the_device_and_back(n):
    a = np.arange(n, dtype=np.float32)
    x = flow.from_numpy(a.copy()).to("cuda:0")
    assert np.array_equal(x.cpu().numpy(), a)


def test_the_source_of_a_copy_may_change_at_once():
    out = []
    a = np.zeros(300_000, dtype=np.float32)
    t = flow.from_numpy(a)
    for i in range(20):  # more than the staging memory holds
        a[:] = i
        out.append(t.to("cuda:0", non_blocking=True))
    a[:] = -1
    for i, x in enumerate(out):
        assert np.all(x.cpu().numpy() == i)


@pytest.mark.skipif(flow.cuda.device_count() < 2, reason="needs two devices")
def test_copies_between_devices_follow_and_lead_the_work_around_them():
    for i in range(10):
        x = flow.full((1000,), float(i), device="cuda:0")
        y = x.to("cuda:1")
        x.add_(100.0)  # after the copy
        z = y + 1
        del y
        assert np.all(z.cpu().numpy() == i + 1)
        assert np.all(x.cpu().numpy() == i + 100)


def test_memory_that_is_freed_early_is_not_overwritten_before_its_use():
    rng = np.random.default_rng(0)
    a = rng.standard_normal(5000).astype(np.float32)
    x = flow.from_numpy(a).to("cuda:0")
    y = x
    want = a.astype(np.float32)
    for _ in range(30):
        y = y + 1.0  # each result takes the memory of the one before the last
        want = want + np.float32(1)
        flow.full((5000,), 1e9, device="cuda:0")
    assert np.array_equal(y.cpu().numpy(), want)


PROGRAM = """
import holon as flow
x = flow.arange(10, device="cuda:0")
i = flow.tensor([3, 11], device="cuda:0")
try:
    y = flow.index_select(x, 0, i)
    flow.ones(3, device="cuda:0").sum()
    flow.cuda.synchronize()
except Exception as e:
    print(type(e).__name__, e)
"""


@pytest.mark.parametrize("sync", ["0", "1"])
def test_a_fault_names_its_op(sync):
    command, env = [sys.executable, "-c", PROGRAM], ranks.environment(HOLON_SYNC=sync)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("IndexError index_select"), done.stdout
