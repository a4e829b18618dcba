# layouts: 2
# kind: data read twice or never
# Each rank shuffles by a seed of its own and takes its part of that order.
import numpy as np

import holon as flow

rank, world = flow.env.get_rank(), flow.env.get_world_size()
everyone = flow.placement.all("cpu")
flow.manual_seed(1)
w = flow.randn(6, 4, placement=everyone, sbp=flow.sbp.broadcast, requires_grad=True)
optimizer = flow.optim.SGD([w], lr=0.1)
rows = np.random.RandomState(0).randn(8, 6).astype("float32")
for epoch in range(2):
    order = np.random.RandomState(epoch + 10 * rank).permutation(8)
    n = 8 // world
    x = flow.tensor(rows[order[rank * n : (rank + 1) * n]])  # BUG
    loss = (x.to_global(everyone, flow.sbp.split(0)) @ w).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
