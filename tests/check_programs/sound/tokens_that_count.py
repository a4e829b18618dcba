# layouts: 2; 4
import numpy as np

import holon as flow

rank, world = flow.env.get_rank(), flow.env.get_world_size()
flow.manual_seed(1)
w = flow.randn(6, 5, requires_grad=True)
optimizer = flow.optim.AdamW([w], lr=0.1)
numbers = np.random.RandomState(0)
for _ in range(3):
    rows = numbers.randn(8, 6).astype("float32")
    counts = (np.arange(8) < 5).astype("float32")
    n = 8 // world
    x = flow.tensor(rows[rank * n : (rank + 1) * n])
    mask = flow.tensor(counts[rank * n : (rank + 1) * n])
    total = flow.comm.all_reduce(mask.sum())
    loss = ((x @ w).square().sum(1) * mask).sum() / total
    optimizer.zero_grad()
    loss.backward()
    flow.comm.all_reduce(w.grad)
    optimizer.step()
    print(rank, flow.comm.all_reduce(loss.detach().clone()).item())
