# layouts: 2
# kind: data read twice or never
# The sampler is told that there is one replica, so that all ranks read everything.
from holon.utils.data import DataLoader, DistributedSampler, TensorDataset

import holon as flow

rank, world = flow.env.get_rank(), flow.env.get_world_size()
flow.manual_seed(1)
data = TensorDataset(flow.randn(16, 5))
sampler = DistributedSampler(data, num_replicas=1, rank=0, shuffle=False)
loader = DataLoader(data, batch_size=8 // world, sampler=sampler)
w = flow.randn(5, 3, requires_grad=True)
optimizer = flow.optim.SGD([w], lr=0.1)
for (x,) in loader:  # BUG
    loss = (x @ w).square().mean()
    optimizer.zero_grad()
    loss.backward()
    flow.comm.all_reduce(w.grad)
    w.grad.div_(world)
    optimizer.step()
