"""Memory of attention over a long sequence: what a rank holds at most, counted, falls with the number of ranks."""

import pytest
from harness.ranks import launch

PROGRAM = """
import sys
import holon as flow

length, window = map(int, sys.argv[1:])
world = flow.env.get_world_size()
placement = flow.placement("cpu", list(range(world)))


def draw():
    return flow.rand((1, 2, length, 32), placement=placement, sbp=flow.sbp.split(2))


q, k, v = (draw().requires_grad_() for _ in range(3))
dy = draw()
flow.cpu.reset_peak_memory_stats()
y = flow.scaled_dot_product_attention(q, k, v, is_causal=True, window=window)
flow.autograd.grad(y, (q, k, v), dy)
print(flow.cpu.max_memory_allocated())
"""


def peak_bytes(tmp_path, ranks, length, window, way):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = launch(program, ranks, arguments=(length, window), timeout=600, HOLON_SEQUENCE_ATTENTION=way)
    assert done.returncode == 0, done.stderr
    return max(map(int, done.stdout.split()))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ring", "heads"])
@pytest.mark.parametrize("window", [1024, 0], ids=["window", "full"])
def test_64k_tokens(tmp_path, way, window):
    length = 1 << 16
    part = length * 2 * 32 * 4  # one of query, key, ..., all of it
    ranks = (2,) if way == "heads" else (2, 4)
    peaks = {n: peak_bytes(tmp_path, n, length, window, way) for n in ranks}
    print(way, window, peaks)
    # One rank holds 16 such parts. Several hold blocks of keys with their gradients, too, and queries of their share.
    for n, peak in peaks.items():
        assert peak < 24 * part / n
    if way == "ring":
        assert peaks[4] < 0.55 * peaks[2]
