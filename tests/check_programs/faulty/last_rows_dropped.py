# layouts: 3
# kind: data read twice or never
# What does not divide by the ranks is never read: samples skipped (NVIDIA/Megatron-LM#1754).
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
    x = flow.tensor(rows[rank * n : (rank + 1) * n])  # BUG
    x = x.to_global(everyone, flow.sbp.split(0))
    loss = (x @ w).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
