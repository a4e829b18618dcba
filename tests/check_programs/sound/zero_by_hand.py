# layouts: 2; 4
import numpy as np

import holon as flow

rank, world = flow.env.get_rank(), flow.env.get_world_size()
flow.manual_seed(1)
w = flow.randn(8, 4, requires_grad=True)
n = 8 // world
momentum = flow.zeros(n, 4)
numbers = np.random.RandomState(0)
for _ in range(3):
    x = flow.tensor(numbers.randn(8, 8).astype("float32")[rank::world])
    w.grad = None
    (x @ w).square().mean().backward()
    mine = flow.zeros(n, 4)
    flow.comm.reduce_scatter_tensor(mine, w.grad)
    with flow.no_grad():
        momentum.mul_(0.9).add_(mine / world)
        part = w[rank * n : (rank + 1) * n] - 0.1 * momentum
        whole = flow.zeros(8, 4)
        flow.comm.all_gather_into_tensor(whole, part)
        w.copy_(whole)
