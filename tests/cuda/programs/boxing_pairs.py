"""Every boxing on devices gives what it gives on the CPU."""

import itertools
import os
import sys

import numpy as np

import holon as flow

rank, world = flow.env.get_rank(), flow.env.get_world_size()
S, B, P = flow.sbp.split, flow.sbp.broadcast, flow.sbp.partial_sum
there = os.environ.get("HOLON_TEST_DEVICE", "cuda")
done = 0


def part_of(x):
    return x.to_local().cpu().numpy()


def compare(shape, dtype, source, target, before, after, where=(there, there)):
    """Two ways of the same values: on the CPU, and on devices at the places named."""
    global done
    rng = np.random.default_rng(7 + done)
    member = rank in np.ravel(source)
    at = np.argwhere(np.array(source) == rank)[0] if member else ()
    layouts = before if isinstance(before, list) else [before]
    mine = int(sum((k + 1) * c for k, (c, s) in enumerate(zip(at, layouts)) if s == P))
    values = rng.integers(-9, 10, shape).astype("float32")

    def on(kinds):
        x = flow.tensor(values).to(dtype)
        all_b = [B] * (len(before) if isinstance(before, (list, tuple)) else 1)
        x = x.to(kinds[0]) if kinds[0] == there else x
        g = x.to_global(flow.placement(kinds[0], source), all_b)
        # As what the source is to be, with addends on every rank.
        part = g.to_global(sbp=before).to_local() + mine if member else flow.zeros(*shape, dtype=dtype, device=kinds[0])
        g = part.to_global(flow.placement(kinds[0], source), before)
        return g.to_global(flow.placement(kinds[1], target), after)

    cpu, device = on(("cpu", "cpu")), on(where)
    assert device.placement == flow.placement(where[1], target) and list(device.shape) == list(cpu.shape)
    a, b = part_of(cpu), part_of(device)
    assert a.shape == b.shape and a.dtype == b.dtype, (a.shape, b.shape)
    np.testing.assert_array_equal(
        a, b, err_msg=f"{shape} {dtype} {source} {before} -> {target} {after} {where} on rank {rank}"
    )
    done += 1


ranks = list(range(world))
one = [S(0), S(1), B, P]
for before, after in itertools.product(one, one):
    for shape in ((5, 3), (4, 6), (1, 7), (0, 3), (3, 1))[: 5 if world == 2 else 2]:
        compare(shape, flow.float32, ranks, ranks, before, after)
    for where in ((there, "cpu"), ("cpu", there)):
        compare((5, 7), flow.float32, ranks, ranks, before, after, where)
for dtype in (flow.float16, flow.bfloat16, flow.float64, flow.int32, flow.int64, flow.int8):
    for before, after in ((P, B), (P, S(0)), (P, S(1)), (S(0), B), (S(1), B), (S(0), S(1)), (B, P)):
        compare((6, 5), dtype, ranks, ranks, before, after)
compare((2, 3, 4), flow.float32, ranks, ranks, S(2), S(1))
compare((8192, 9), flow.float32, ranks, ranks, P, B)
compare((8192, 9), flow.float32, ranks, ranks, P, S(0))
compare((1024, 1024), flow.float32, ranks, ranks, S(1), B)
# other ranks, fewer, another order
moves = [([0], [1]), ([0, 1], [1, 0]), ([0, 1], [1])] if world > 1 else []
if world == 4:
    moves += [([0, 1], [2, 3]), ([0, 1, 2], [1, 3]), ([3, 1], [0, 1, 2, 3])]
for (source, target), before, after in itertools.product(moves, one, one):
    compare((5, 6), flow.float32, source, target, before, after)
for source, target in moves:
    for where in ((there, "cpu"), ("cpu", there)):
        compare((5, 6), flow.float32, source, target, S(0), B, where)
        compare((5, 6), flow.float32, source, target, P, S(1), where)
if world == 4:
    grid = [[0, 1], [2, 3]]
    two = list(itertools.product(one, one))
    for k, (before, after) in enumerate(itertools.product(two, two)):
        if k % 11 == 0:  # every layout comes before and after
            compare([(4, 6), (5, 3), (3, 7)][k % 3], flow.float32, grid, grid, list(before), list(after))
    for before in two[::2]:
        compare((6, 5), flow.float32, grid, [0, 1, 2, 3], list(before), S(0))
        compare((6, 5), flow.float32, [3, 1, 2, 0], grid, S(1), list(before))
sys.stdout.write(f"rank {rank}: {done} boxings\n")
