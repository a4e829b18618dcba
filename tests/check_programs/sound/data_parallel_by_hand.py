# layouts: 2; 4
import numpy as np

import holon as flow

rank, world = flow.env.get_rank(), flow.env.get_world_size()
flow.manual_seed(1)
w = flow.randn(6, 4, requires_grad=True)
b = flow.zeros(4, requires_grad=True)
optimizer = flow.optim.AdamW([w, b], lr=0.01)
numbers = np.random.RandomState(0)
for _ in range(3):
    x, y = numbers.randn(8, 6).astype("float32"), numbers.randn(8, 4).astype("float32")
    n = 8 // world
    x, y = (flow.tensor(a[rank * n : (rank + 1) * n]) for a in (x, y))
    loss = ((x @ w + b).tanh() - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for p in (w, b):
        flow.comm.all_reduce(p.grad)
        p.grad.div_(world)
    optimizer.step()
