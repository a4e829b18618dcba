# layouts: 2; 4
from holon.utils.data import DataLoader, TensorDataset

import holon as flow
from holon import nn

everyone = flow.placement.all("cpu")
flow.manual_seed(3)
rows = flow.randn(24, 5)
data = TensorDataset(rows, rows.sum(1))
loader = DataLoader(data, batch_size=8, shuffle=True, placement=everyone, sbp=flow.sbp.split(0))
model = nn.Linear(5, 1).to_global(everyone, flow.sbp.broadcast)
optimizer = flow.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    loss = (model(x).squeeze(1) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
