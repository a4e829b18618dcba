# layouts: 2; 4
from holon.utils.data import DataLoader, DistributedSampler, TensorDataset

import holon as flow

rank, world = flow.env.get_rank(), flow.env.get_world_size()
flow.manual_seed(1)
data = TensorDataset(flow.randn(16, 5))
sampler = DistributedSampler(data, num_replicas=world, rank=rank, shuffle=False)
loader = DataLoader(data, batch_size=8 // world, sampler=sampler)
w = flow.randn(5, 3, requires_grad=True)
optimizer = flow.optim.SGD([w], lr=0.1)
for (x,) in loader:
    loss = (x @ w).square().mean()
    optimizer.zero_grad()
    loss.backward()
    flow.comm.all_reduce(w.grad)
    w.grad.div_(world)
    optimizer.step()
