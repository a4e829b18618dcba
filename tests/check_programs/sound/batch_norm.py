# layouts: 2; 4
import holon as flow
from holon import nn

everyone = flow.placement.all("cpu")
flow.manual_seed(1)
model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
model = model.to_global(everyone, flow.sbp.broadcast)
optimizer = flow.optim.SGD(model.parameters(), lr=0.05, weight_decay=1e-3)
for _ in range(3):
    x = flow.randn(8, 3, 6, 6, placement=everyone, sbp=flow.sbp.split(0))
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
