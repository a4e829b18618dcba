# layouts: 2; 4
import holon as flow
from holon import nn

world = flow.env.get_world_size()
first = flow.placement("cpu", list(range((world + 1) // 2)))
last = flow.placement("cpu", list(range(world // 2, world)))
flow.manual_seed(5)
a = nn.Linear(6, 8).to_global(first, flow.sbp.broadcast)
b = nn.Linear(8, 2).to_global(last, flow.sbp.broadcast)
optimizer = flow.optim.SGD([*a.parameters(), *b.parameters()], lr=0.1)
for _ in range(2):
    x = flow.randn(8, 6, placement=first, sbp=flow.sbp.split(0))
    h = a(x).tanh().to_global(last, flow.sbp.split(0))
    loss = b(h).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
