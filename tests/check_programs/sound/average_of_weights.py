# layouts: 2
import holon as flow
from holon import nn

everyone = flow.placement.all("cpu")
flow.manual_seed(8)
model = nn.Linear(6, 6).to_global(everyone, flow.sbp.broadcast)
average = [p.detach().clone() for p in model.parameters()]
optimizer = flow.optim.RMSprop(model.parameters(), lr=0.01)
for _ in range(3):
    x = flow.randn(4, 6, placement=everyone, sbp=flow.sbp.split(0))
    loss = model(x).sin().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with flow.no_grad():
        for a, p in zip(average, model.parameters()):
            a.mul_(0.9).add_(p * 0.1)
print(average[0].numpy().sum())
