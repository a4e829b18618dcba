# layouts: 2; 4
# kind: data read twice or never
# Every rank reads the first rows of the batch (pytorch/torchtitan: ranks fed the same data).
import numpy as np

import holon as flow

rank, world = flow.env.get_rank(), flow.env.get_world_size()
everyone = flow.placement.all("cpu")
flow.manual_seed(1)
w = flow.randn(6, 4, placement=everyone, sbp=flow.sbp.broadcast, requires_grad=True)
optimizer = flow.optim.SGD([w], lr=0.1)
numbers = np.random.RandomState(0)
for _ in range(3):
    rows = numbers.randn(8, 6).astype("float32")
    n = 8 // world
    x = flow.tensor(rows[:n])  # BUG
    x = x.to_global(everyone, flow.sbp.split(0))
    loss = (x @ w).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
