# layouts: 2; 4
# Activations are split over the sequence between products, and over features inside.
import holon as flow
from holon import nn

everyone = flow.placement.all("cpu")
split, copy = flow.sbp.split, flow.sbp.broadcast
flow.manual_seed(1)
norm = nn.LayerNorm(8).to_global(everyone, copy)
up = nn.Parameter(flow.randn(8, 32, placement=everyone, sbp=split(1)) * 0.2)
down = nn.Parameter(flow.randn(32, 8, placement=everyone, sbp=split(0)) * 0.2)
optimizer = flow.optim.LAMB([*norm.parameters(), up, down], lr=0.01)
for _ in range(3):
    x = flow.randn(2, 8, 8, placement=everyone, sbp=split(1))
    h = norm(x).to_global(sbp=copy)
    h = nn.functional.silu(h @ up)
    y = (h @ down).to_global(sbp=split(1))
    loss = (x + y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
