# layouts: 2
# kind: wrong scale, differs, local op on a global meaning, missing sum
# Ranks have batches of other sizes, and their means count alike (verl-project/verl#5867).
import numpy as np

import holon as flow

rank, world = flow.env.get_rank(), flow.env.get_world_size()
flow.manual_seed(1)
w = flow.randn(6, 4, requires_grad=True)
optimizer = flow.optim.SGD([w], lr=0.1)
numbers = np.random.RandomState(0)
for _ in range(2):
    rows = numbers.randn(7, 6).astype("float32")
    n = (7 + world - 1) // world
    x = flow.tensor(rows[rank * n : (rank + 1) * n])
    loss = (x @ w).square().mean()  # BUG
    optimizer.zero_grad()
    loss.backward()
    flow.comm.all_reduce(w.grad)
    w.grad.div_(world)
    optimizer.step()
