#!/usr/bin/env python3
"""Attention over a sequence that is split over 4 ranks (ring, with causal balance) and over its heads (all-to-all),
next to the kernel on one rank: 16,384 tokens, 4 heads of width 64, causal, float32, forward and forward with backward.

Every side has the same cores: one rank with a thread for each, and 4 ranks as processes with one thread each. The
ratio is of their FLOP/s, which is that of their times as all do the same work; 1 would be a ring that costs nothing.
The sides take turns; what is printed is the median.
"""

import json
import os
import statistics
import subprocess
import sys
import time

LENGTH, HEADS, WIDTH, RANKS, TURNS = 16384, 4, 64, 4, 3


def worker():
    import holon as flow

    world = flow.env.get_world_size()
    placement = flow.placement("cpu", list(range(world)))
    flow.manual_seed(0)

    def draw():
        x = flow.randn((1, HEADS, LENGTH, WIDTH), placement=placement, sbp=flow.sbp.split(2))
        return x.requires_grad_()

    q, k, v = draw(), draw(), draw()
    with flow.no_grad():
        dy = draw().detach()

    def forward():
        with flow.no_grad():
            flow.scaled_dot_product_attention(q, k, v, is_causal=True)

    def both():
        y = flow.scaled_dot_product_attention(q, k, v, is_causal=True)
        flow.autograd.grad(y, (q, k, v), dy)

    times = {}
    for name, f in (("forward", forward), ("forward and backward", both)):
        f()
        flow.comm.barrier()
        begin = time.perf_counter()
        f()
        flow.comm.barrier()
        times[name] = time.perf_counter() - begin
    if flow.env.get_rank() == 0:
        print(json.dumps(times))


def measured(ranks, threads, way):
    start = [sys.executable]
    if ranks > 1:
        start += ["-m", "holon.distributed.launch", "--nproc_per_node", str(ranks)]
    env = dict(os.environ, OMP_NUM_THREADS=str(threads), HOLON_SEQUENCE_ATTENTION=way)
    done = subprocess.run([*start, __file__, "--worker"], capture_output=True, text=True, env=env)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main():
    cores = len(os.sched_getaffinity(0))
    sides = {
        "one rank": (1, min(cores, RANKS), ""),
        "ring": (RANKS, 1, "ring"),
        "heads": (RANKS, 1, "heads"),
    }
    times = {name: [] for name in sides}
    for _ in range(TURNS):
        for name, side in sides.items():
            times[name].append(measured(*side))
    for what in times["one rank"][0]:
        flops = (2 if what == "forward" else 7) * 2 * HEADS * LENGTH**2 * WIDTH / 2
        one = statistics.median(t[what] for t in times["one rank"])
        for name in ("ring", "heads"):
            value = statistics.median(t[what] for t in times[name])
            line = {
                "name": f"attention {what}, {LENGTH} tokens on {RANKS} ranks, {name}",
                "value": round(flops / value / 1e9, 1),
                "unit": "GFLOP/s",
                "against": f"the kernel on one rank with {sides['one rank'][1]} threads",
                "ratio": round(one / value, 3),
            }
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    worker() if "--worker" in sys.argv else main()
