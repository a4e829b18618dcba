# layouts: 2; 4
import holon as flow
from holon import nn

everyone = flow.placement.all("cpu")
flow.manual_seed(1)
maker = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 6)).to_global(everyone, flow.sbp.broadcast)
judge = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1)).to_global(everyone, flow.sbp.broadcast)
first, second = flow.optim.Adam(maker.parameters(), lr=0.01), flow.optim.Adam(judge.parameters(), lr=0.01)
for _ in range(3):
    real = flow.randn(8, 6, placement=everyone, sbp=flow.sbp.split(0))
    noise = flow.randn(8, 4, placement=everyone, sbp=flow.sbp.split(0))
    fake = maker(noise)
    loss = nn.functional.softplus(-judge(real)).mean() + nn.functional.softplus(judge(fake.detach())).mean()
    second.zero_grad()
    loss.backward()
    second.step()
    loss = nn.functional.softplus(-judge(fake)).mean()
    first.zero_grad()
    loss.backward()
    first.step()
