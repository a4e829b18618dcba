"""Tensors of more than 2^31 elements: every index and count must be 64 bits wide."""

from pathlib import Path

import pytest

import holon as flow

N = 2**31 + 1000


def available_gib():
    line = next(x for x in Path("/proc/meminfo").read_text().splitlines() if x.startswith("MemAvailable"))
    return int(line.split()[1]) / 2**20


@pytest.mark.slow
@pytest.mark.skipif(available_gib() < 10, reason="two tensors of 2 GiB each need 10 GiB of free memory")
def test_ops_reach_the_last_element():
    x = flow.zeros(N, dtype=flow.int8)
    x[N - 1], x[5] = 3, 2
    at = flow.tensor([N - 1, 5])
    assert (
        x.sum().item() == 5 and x.max().item() == 3 and x.argmax().item() == N - 1 and flow.count_nonzero(x).item() == 2
    )
    for picked in (flow.index_select(x, 0, at), flow.gather(x, 0, at), x[at], flow.take(x, at)):
        assert picked.tolist() == [3, 2]
    assert flow.nonzero(x[2**31 - 5 :]).tolist() == [[1004]]
    y = x + 1
    assert y[N - 1].item() == 4 and y[N - 2].item() == 1
    del y
    assert flow.cat([x[: N // 2], x[N // 2 :]])[-1].item() == 3
    assert x.reshape(-1, 8)[-1].tolist() == [0] * 7 + [3]
    del x
    w = flow.zeros(2**16 + 1, 2**15, dtype=flow.int8)
    w[2**16, 7] = 1
    assert w.sum(0)[7].item() == 1 and w.sum(1)[-1].item() == 1 and w.t()[7, 2**16].item() == 1
