# layouts: 2; 3; 4
import holon as flow
from holon import nn

everyone = flow.placement.all("cpu")
flow.manual_seed(1)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).to_global(everyone, flow.sbp.broadcast)
optimizer = flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(3):
    x = flow.randn(12, 6, placement=everyone, sbp=flow.sbp.split(0))
    y = flow.randint(0, 3, (12,), placement=everyone, sbp=flow.sbp.split(0))
    loss = flow.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
