# layouts: 2
import holon as flow
from holon import nn

everyone = flow.placement.all("cpu")
flow.manual_seed(1)
model = nn.LSTM(5, 8, batch_first=True).to_global(everyone, flow.sbp.broadcast)
optimizer = flow.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    x = flow.randn(4, 7, 5, placement=everyone, sbp=flow.sbp.split(0))
    y, (h, c) = model(x)
    loss = y.square().mean() + h.abs().mean()
    optimizer.zero_grad()
    loss.backward()
    flow.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
