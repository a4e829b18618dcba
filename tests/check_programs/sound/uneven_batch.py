# layouts: 2; 3; 4
import numpy as np

import holon as flow

rank, world = flow.env.get_rank(), flow.env.get_world_size()
everyone = flow.placement.all("cpu")
flow.manual_seed(1)
w = flow.randn(5, 3, placement=everyone, sbp=flow.sbp.broadcast, requires_grad=True)
optimizer = flow.optim.SGD([w], lr=0.1)
numbers = np.random.RandomState(0)
for _ in range(3):
    rows = numbers.randn(7, 5).astype("float32")
    x = flow.tensor(rows, placement=everyone, sbp=flow.sbp.split(0))
    loss = (x @ w).exp().sum() / 7
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:
        print("a step on", world)
