# layouts: 2
from holon.utils.checkpoint import checkpoint

import holon as flow
from holon import nn

everyone = flow.placement.all("cpu")
flow.manual_seed(1)
block = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.GELU(), nn.Linear(16, 8))
block = block.to_global(everyone, flow.sbp.broadcast)
optimizer = flow.optim.SGD(block.parameters(), lr=0.1, momentum=0.9)
schedule = flow.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
for _ in range(3):
    x = flow.randn(8, 8, placement=everyone, sbp=flow.sbp.split(0), requires_grad=True)
    loss = (checkpoint(block, x, use_reentrant=False) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
