# layouts: 2; 4
import numpy as np

import holon as flow
from holon import nn

rank, world = flow.env.get_rank(), flow.env.get_world_size()
flow.manual_seed(1)
model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))
optimizer = flow.optim.Adam(model.parameters(), lr=0.01)
numbers = np.random.RandomState(0)
for step in range(3):
    images, labels = numbers.randn(8, 2, 6, 6).astype("float32"), numbers.randint(0, 3, 8)
    n = 8 // world
    x, y = (flow.tensor(a[rank * n : (rank + 1) * n]) for a in (images, labels))
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        flow.comm.all_reduce(p.grad)
        p.grad /= world
    optimizer.step()
    if rank == 0:
        print(step, loss.item())
