# layouts: 2; 4
import numpy as np

import holon as flow

rank, world = flow.env.get_rank(), flow.env.get_world_size()
flow.manual_seed(9)
w = flow.randn(4, 4, requires_grad=True)
optimizer = flow.optim.Adam([w], lr=0.02)
numbers = np.random.RandomState(1)
for _ in range(2):
    optimizer.zero_grad()
    for _ in range(3):
        batch = numbers.randn(8, 4).astype("float32")
        x = flow.tensor(batch[rank::world])
        loss = (x @ w).square().mean() / 3
        loss.backward()
    flow.comm.all_reduce(w.grad)
    w.grad /= world
    norm = flow.nn.utils.clip_grad_norm_([w], 0.5)
    optimizer.step()
    print(rank, norm.item())
