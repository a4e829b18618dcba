# layouts: 2; 4
# kind: local op on a global meaning, missing sum, differs
# Each rank clips its own gradient, and the clipped ones are averaged.
import numpy as np

import holon as flow

rank, world = flow.env.get_rank(), flow.env.get_world_size()
flow.manual_seed(1)
w = flow.randn(6, 4, requires_grad=True)
optimizer = flow.optim.SGD([w], lr=0.1)
numbers = np.random.RandomState(0)
for _ in range(2):
    x = flow.tensor(numbers.randn(8, 6).astype("float32")[rank::world])
    loss = (x @ w).square().mean()
    optimizer.zero_grad()
    loss.backward()
    flow.nn.utils.clip_grad_norm_([w], 0.1)  # BUG
    flow.comm.all_reduce(w.grad)
    w.grad.div_(world)
    optimizer.step()
