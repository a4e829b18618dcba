# layouts: 2; 4
import holon as flow
from holon import nn

everyone = flow.placement.all("cpu")
flow.manual_seed(1)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        split = flow.sbp.split
        self.up = nn.Parameter(flow.randn(8, 32, placement=everyone, sbp=split(1)) * 0.3)
        self.down = nn.Parameter(flow.randn(32, 8, placement=everyone, sbp=split(0)) * 0.2)
        self.norm = nn.LayerNorm(8).to_global(everyone, flow.sbp.broadcast)

    def forward(self, x):
        h = flow.nn.functional.gelu(self.norm(x) @ self.up)
        return x + (h @ self.down).to_global(sbp=flow.sbp.broadcast)


model = nn.Sequential(Mlp(), Mlp())
optimizer = flow.optim.Adam(model.parameters(), lr=0.01)
for _ in range(3):
    x = flow.randn(6, 8, placement=everyone, sbp=flow.sbp.broadcast)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    flow.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
