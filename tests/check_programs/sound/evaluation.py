# layouts: 2
import holon as flow
from holon import nn

everyone, rank = flow.placement.all("cpu"), flow.env.get_rank()
flow.manual_seed(1)
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
model = model.to_global(everyone, flow.sbp.broadcast)
optimizer = flow.optim.Adadelta(model.parameters(), lr=0.5)
for _ in range(2):
    x = flow.randn(8, 6, placement=everyone, sbp=flow.sbp.split(0))
    y = flow.randint(0, 3, (8,), placement=everyone, sbp=flow.sbp.split(0))
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.eval()
    with flow.no_grad():
        right = (model(x).argmax(1) == y).float().mean()
    model.train()
    if rank == 0:
        print("evaluated")
    print(right.item())
