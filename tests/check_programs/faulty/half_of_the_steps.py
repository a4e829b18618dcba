# layouts: 2
# kind: data read twice or never
# The number of batches is divided by the ranks, although a batch is shared by all of them.
import numpy as np

import holon as flow

rank, world = flow.env.get_rank(), flow.env.get_world_size()
everyone = flow.placement.all("cpu")
rows = np.random.RandomState(0).randn(16, 6).astype("float32")
flow.manual_seed(1)
w = flow.randn(6, 4, placement=everyone, sbp=flow.sbp.broadcast, requires_grad=True)
optimizer = flow.optim.SGD([w], lr=0.1)
for i in range(2 // world):
    x = flow.tensor(rows[8 * i : 8 * i + 8], placement=everyone, sbp=flow.sbp.split(0))  # BUG
    loss = (x @ w).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
