# layouts: 2; 4
import holon as flow
from holon import nn

everyone = flow.placement.all("cpu")
flow.manual_seed(2)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.4), nn.ReLU(), nn.Linear(16, 8))
model = model.to_global(everyone, flow.sbp.broadcast)
optimizer = flow.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    x = flow.randn(8, 8, placement=everyone, sbp=flow.sbp.split(0))
    loss = (model(x) - x).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
