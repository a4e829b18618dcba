# layouts: 2; 3
import holon as flow
from holon import nn

everyone = flow.placement.all("cpu")
split, copy = flow.sbp.split, flow.sbp.broadcast
flow.manual_seed(4)
w = nn.Parameter(flow.randn(16, 48, placement=everyone, sbp=copy) * 0.2)
norm = nn.LayerNorm(16).to_global(everyone, copy)
optimizer = flow.optim.SGD([w, *norm.parameters()], lr=0.1)
for _ in range(2):
    x = flow.randn(2, 12, 16, placement=everyone, sbp=split(1))
    q, k, v = (norm(x) @ w).chunk(3, -1)
    q, k, v = (a.reshape(2, 12, 2, 8).transpose(1, 2) for a in (q, k, v))
    y = flow.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    loss = (y.transpose(1, 2).reshape(2, 12, 16) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
