# layouts: 2; 4
import holon as flow
from holon import nn

everyone = flow.placement.all("cpu")
flow.manual_seed(1)
model = nn.Sequential(nn.Linear(6, 12), nn.SiLU(), nn.Linear(12, 2)).to_global(everyone, flow.sbp.broadcast)


class Train(nn.Graph):
    def __init__(self):
        super().__init__()
        self.model = model
        self.add_optimizer(flow.optim.AdamW(model.parameters(), lr=0.01))

    def build(self, x):
        loss = self.model(x).square().mean()
        loss.backward()
        return loss


step = Train()
for _ in range(3):
    print(step(flow.randn(8, 6, placement=everyone, sbp=flow.sbp.split(0))).item())
