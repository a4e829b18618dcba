"""What goes wrong between ranks on devices raises, on every rank that is left, in time."""

import os
import sys
import time

import holon as flow

rank, world = flow.env.get_rank(), flow.env.get_world_size()
B, P, S = flow.sbp.broadcast, flow.sbp.partial_sum, flow.sbp.split
everyone = flow.placement("cuda", list(range(world)))
kind = os.environ["WORDS"]


def part(*shape, sbp=P, place=everyone):
    return flow.ones(*shape, device="cuda").to_global(place, sbp, check_meta=False)


if kind != "alone":
    part(4).to_global(sbp=B).to_local().cpu()  # all are connected
start = time.time()
try:
    if kind == "dies" and rank == 1:
        os._exit(7)
    if kind == "throws" and rank == 1:
        raise RuntimeError("no data")
    if kind == "late" and rank == 1:
        time.sleep(30)
    if kind == "shape":
        part(4 + rank).to_global(sbp=B).to_local().cpu()
    elif kind == "order":
        for sbp in (B, S(0))[:: 1 if rank == 0 else -1]:
            part(8).to_global(sbp=sbp).to_local().cpu()
    else:
        part(4).to_global(sbp=B).to_local().cpu()
    flow.cuda.synchronize()
except RuntimeError as e:
    sys.stdout.write(f"rank {rank} after {time.time() - start:.0f} s: {e}\n")
    sys.stdout.flush()
    raise
sys.stdout.write(f"rank {rank}: nothing was wrong\n")
