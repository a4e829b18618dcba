# layouts: 2
# kind: drifted replicas, differs
# The first rank alone lowers its learning rate.
import holon as flow

rank, everyone = flow.env.get_rank(), flow.placement.all("cpu")
flow.manual_seed(1)
w = flow.randn(6, 4, placement=everyone, sbp=flow.sbp.broadcast, requires_grad=True)
optimizer = flow.optim.SGD([w], lr=0.1)
for step in range(3):
    x = flow.randn(8, 6, placement=everyone, sbp=flow.sbp.split(0))
    loss = (x @ w).square().mean()
    optimizer.zero_grad()
    loss.backward()
    if rank == 0 and step == 1:
        optimizer.param_groups[0]["lr"] = 0.01
    optimizer.step()  # BUG
