# layouts: 2
# kind: local op on a global meaning, differs, missing sum, wrong scale
# The loss is divided by each rank's number of tokens that count (verl-project/verl#5867).
import numpy as np

import holon as flow

rank, world = flow.env.get_rank(), flow.env.get_world_size()
flow.manual_seed(1)
w = flow.randn(6, 5, requires_grad=True)
optimizer = flow.optim.SGD([w], lr=0.1)
numbers = np.random.RandomState(0)
for _ in range(2):
    rows = numbers.randn(8, 6).astype("float32")
    counts = (np.arange(8) < 5).astype("float32")
    n = 8 // world
    x = flow.tensor(rows[rank * n : (rank + 1) * n])
    mask = flow.tensor(counts[rank * n : (rank + 1) * n])
    per_row = (x @ w).square().sum(1) * mask
    loss = per_row.sum() / mask.sum()  # BUG
    optimizer.zero_grad()
    loss.backward()
    flow.comm.all_reduce(w.grad)
    w.grad.div_(world)
    optimizer.step()
