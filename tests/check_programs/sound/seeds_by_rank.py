# layouts: 2; 4
# Local numbers of each rank are used where they are meant to differ: for nothing that is trained.
import numpy as np

import holon as flow

rank, world = flow.env.get_rank(), flow.env.get_world_size()
everyone = flow.placement.all("cpu")
flow.manual_seed(1)
w = flow.randn(6, 4, placement=everyone, sbp=flow.sbp.broadcast, requires_grad=True)
optimizer = flow.optim.RMSprop([w], lr=0.01, momentum=0.9)
probe = np.random.RandomState(rank).randn(3, 6).astype("float32")
for _ in range(3):
    x = flow.randn(8, 6, placement=everyone, sbp=flow.sbp.split(0))
    loss = (x @ w).square().mean() + w.abs().sum() * 1e-3
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seen = flow.tensor(probe) @ w.detach().to_local()
    print(rank, seen.norm().item())
