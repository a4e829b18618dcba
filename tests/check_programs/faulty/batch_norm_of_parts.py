# layouts: 2
# kind: local op on a global meaning, missing sum
# Batch statistics are each rank's own, and so are the running ones.
import numpy as np

import holon as flow
from holon import nn

rank, world = flow.env.get_rank(), flow.env.get_world_size()
flow.manual_seed(1)
model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
optimizer = flow.optim.SGD(model.parameters(), lr=0.1)
numbers = np.random.RandomState(0)
for _ in range(3):
    rows = numbers.randn(12, 6).astype("float32")
    x = flow.tensor(rows[rank::world])
    loss = model(x).square().mean()  # BUG
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        flow.comm.all_reduce(p.grad)
        p.grad.div_(world)
    optimizer.step()
