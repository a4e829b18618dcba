# layouts: 2
# kind: unsynchronised random numbers
# Replicas of a weight begin with other numbers on each rank.
import numpy as np

import holon as flow

rank, world = flow.env.get_rank(), flow.env.get_world_size()
flow.manual_seed(1 + rank)
w = flow.randn(6, 4, requires_grad=True)  # BUG
optimizer = flow.optim.SGD([w], lr=0.1)
numbers = np.random.RandomState(0)
for _ in range(3):
    rows = numbers.randn(8, 6).astype("float32")
    x = flow.tensor(rows[rank::world])
    loss = (x @ w).square().mean()
    optimizer.zero_grad()
    loss.backward()
    flow.comm.all_reduce(w.grad)
    w.grad.div_(world)
    optimizer.step()
