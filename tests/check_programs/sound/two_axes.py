# layouts: 4 DP=2 TP=2; 4 DP=4 TP=1; 4 DP=1 TP=4; 2 DP=2 TP=1
import os

import holon as flow
from holon import nn

dp, tp = int(os.environ.get("DP", 1)), int(os.environ.get("TP", 1))
grid = flow.placement("cpu", [[d * tp + t for t in range(tp)] for d in range(dp)])
split, copy = flow.sbp.split, flow.sbp.broadcast
flow.manual_seed(5)
up = nn.Parameter(flow.randn(8, 16, placement=grid, sbp=[copy, split(1)]) * 0.3)
down = nn.Parameter(flow.randn(16, 8, placement=grid, sbp=[copy, split(0)]) * 0.3)
optimizer = flow.optim.Adam([up, down], lr=0.01)
for _ in range(3):
    x = flow.randn(8, 8, placement=grid, sbp=[split(0), copy])
    y = (flow.nn.functional.relu(x @ up) @ down).to_global(sbp=[split(0), copy])
    loss = (y - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
