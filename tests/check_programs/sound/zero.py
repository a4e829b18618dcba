# layouts: 2; 4
# Parameters and their states are split, activations follow the batch.
import holon as flow
from holon import nn

everyone = flow.placement.all("cpu")
flow.manual_seed(8)
model = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8)).to_global(everyone, flow.sbp.broadcast)
model = model.to_global(sbp=flow.sbp.split(0))
optimizer = flow.optim.Adam(model.parameters(), lr=0.01)
with flow.boxing.parameter_policy("gather"):
    for _ in range(3):
        x = flow.randn(8, 8, placement=everyone, sbp=flow.sbp.split(0))
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
