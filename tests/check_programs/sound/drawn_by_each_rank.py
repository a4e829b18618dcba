# layouts: 2
# Nothing is seeded: each rank draws weights of its own, and the first one's count.
import holon as flow
from holon import nn

everyone = flow.placement.all("cpu")
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to_global(everyone, flow.sbp.broadcast)
optimizer = flow.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    x = flow.randn(8, 6, placement=everyone, sbp=flow.sbp.split(0))
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
