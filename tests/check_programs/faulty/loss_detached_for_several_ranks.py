# layouts: 2
# kind: dropped gradient
# An auxiliary loss is averaged over the ranks in a way that loses its gradient.
import numpy as np

import holon as flow

rank, world = flow.env.get_rank(), flow.env.get_world_size()
flow.manual_seed(1)
w = flow.randn(6, 4, requires_grad=True)
optimizer = flow.optim.SGD([w], lr=0.1)
numbers = np.random.RandomState(0)
for _ in range(2):
    x = flow.tensor(numbers.randn(8, 6).astype("float32")[rank::world])
    p = (x @ w).softmax(-1)
    share = p.mean(0)
    if world > 1:
        share = flow.comm.all_reduce(share.detach().clone()) / world  # BUG
    loss = p[:, 0].mean() + (share * share).sum()
    optimizer.zero_grad()
    loss.backward()
    flow.comm.all_reduce(w.grad)
    w.grad.div_(world)
    optimizer.step()
