# layouts: 2
import holon as flow
from holon import nn

everyone = flow.placement.all("cpu")
flow.manual_seed(3)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to_global(everyone, flow.sbp.broadcast)
optimizer = flow.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    x = flow.randn(8, 8, placement=everyone, sbp=flow.sbp.split(0))
    with flow.autocast("cpu", dtype=flow.bfloat16):
        loss = model(x).float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
