# layouts: 2; 4
import holon as flow
from holon import nn

everyone = flow.placement.all("cpu")
split, copy = flow.sbp.split, flow.sbp.broadcast
flow.manual_seed(8)
gate = nn.Parameter(flow.randn(8, 4, placement=everyone, sbp=copy))
experts = nn.Parameter(flow.randn(4, 8, 8, placement=everyone, sbp=split(0)) * 0.3)
optimizer = flow.optim.SGD([gate, experts], lr=0.05)
for _ in range(2):
    x = flow.randn(12, 8, placement=everyone, sbp=copy)
    weights = flow.softmax(x @ gate + 0.1 * flow.randn(12, 4, placement=everyone, sbp=copy), dim=-1)
    best, index = weights.topk(2, dim=-1)
    chosen = flow.zeros_like(weights).scatter(1, index, best)
    y = flow.einsum("tc,ecd->etd", x, experts)
    y = (y * chosen.transpose(0, 1).unsqueeze(-1)).sum(0)
    loss = (y.to_global(sbp=copy) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
