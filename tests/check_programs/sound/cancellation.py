# layouts: 2; 4
# Gradients that are zero but for rounding: a bias before a batch norm, and keys' bias before a softmax.
import holon as flow
from holon import nn

everyone = flow.placement.all("cpu")
flow.manual_seed(3)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4), nn.Softmax(-1))
model = model.to_global(everyone, flow.sbp.broadcast)
optimizer = flow.optim.Adam(model.parameters(), lr=0.01)
for _ in range(3):
    x = flow.randn(16, 8, placement=everyone, sbp=flow.sbp.split(0)) * 100
    loss = (model(x) * flow.arange(4, placement=everyone, sbp=flow.sbp.broadcast)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
