"""A recorded step whose collectives do not come to an end, as WORDS says, raises on every rank that is left;
and ranks of which one must record anew do so together."""

import os
import sys
import threading
import time

import holon as flow
from holon import nn

rank, world = flow.env.get_rank(), flow.env.get_world_size()
kind = os.environ["WORDS"]
place, sbp = flow.placement("cuda", list(range(world))), flow.sbp


class Train(nn.Graph):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to_global(place, sbp.broadcast)
        self.add_optimizer(flow.optim.SGD(self.model.parameters(), lr=0.1))

    def build(self, x):
        loss = self.model(x).sum()
        loss.backward()
        return loss


step = Train()
x = flow.ones(8, 4, placement=place, sbp=sbp.split(0))
for _ in range(3):
    step(x)
flow.cuda.synchronize()
if step.stats()["recorded"] < 1:
    sys.exit("nothing is recorded")
if kind == "moves" and rank == 1:  # this rank alone has to record anew
    step.model[0].weight.data = step.model[0].weight.data * 1
start = time.time()
try:
    if kind == "dies" and rank == 1:  # while the other is in the recording, or before it
        threading.Timer(1, lambda: os._exit(7)).start()
    for _ in range(3):
        loss = step(x)
        flow.cuda.synchronize()
except RuntimeError as e:
    sys.stdout.write(f"rank {rank} after {time.time() - start:.0f} s: {e}\n")
    sys.stdout.flush()
    raise
sys.stdout.write(f"rank {rank}: all steps done, {step.stats()['recorded']} recorded\n")
