# layouts: 2; 4
import holon as flow
from holon import nn

everyone = flow.placement.all("cpu")
split, copy = flow.sbp.split, flow.sbp.broadcast
flow.manual_seed(6)
table = nn.Parameter(flow.randn(17, 8, placement=everyone, sbp=split(0)))
optimizer = flow.optim.Adagrad([table], lr=0.1)
for _ in range(3):
    ids = flow.randint(0, 17, (3, 5), placement=everyone, sbp=copy)
    x = flow.nn.functional.embedding(ids, table)
    logits = x.reshape(15, 8) @ table.transpose(0, 1)
    loss = flow.nn.functional.cross_entropy(logits, ids.reshape(15))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
