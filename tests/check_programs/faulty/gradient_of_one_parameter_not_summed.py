# layouts: 2
# kind: missing sum
# The bias is left out of the sums over ranks, as layer norms under tensor parallelism (NVIDIA/Megatron-LM#1446).
import numpy as np

import holon as flow

rank, world = flow.env.get_rank(), flow.env.get_world_size()
flow.manual_seed(1)
w = flow.randn(6, 4, requires_grad=True)
b = flow.zeros(4, requires_grad=True)
optimizer = flow.optim.SGD([w, b], lr=0.1)
numbers = np.random.RandomState(0)
for _ in range(3):
    rows = numbers.randn(8, 6).astype("float32")
    n = 8 // world
    x = flow.tensor(rows[rank * n : (rank + 1) * n])
    loss = (x @ w + b).exp().mean()
    optimizer.zero_grad()
    loss.backward()
    flow.comm.all_reduce(w.grad)
    w.grad.div_(world)
    optimizer.step()  # BUG
