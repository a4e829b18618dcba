# layouts: 2
# kind: rank-dependent branch, drifted replicas
# One rank forgets to clear what it has accumulated.
import numpy as np

import holon as flow

rank, world = flow.env.get_rank(), flow.env.get_world_size()
flow.manual_seed(1)
w = flow.randn(6, 4, requires_grad=True)
optimizer = flow.optim.SGD([w], lr=0.1)
numbers = np.random.RandomState(0)
for _ in range(3):
    if w.grad is not None and rank == 0:
        w.grad.zero_()  # BUG
    x = flow.tensor(numbers.randn(8, 6).astype("float32")[rank::world])
    (x @ w).square().mean().backward()
    flow.comm.all_reduce(w.grad)
    w.grad.div_(world)
    optimizer.step()
