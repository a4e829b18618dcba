# layouts: 2
# kind: stale replica, drifted replicas, rank-dependent branch
# The average of the weights is kept up on the first rank, and the others get it once, at the start.
import holon as flow

rank, everyone = flow.env.get_rank(), flow.placement.all("cpu")
flow.manual_seed(1)
w = flow.randn(6, 4, placement=everyone, sbp=flow.sbp.broadcast, requires_grad=True)
average = w.detach().clone()
optimizer = flow.optim.SGD([w], lr=0.1)
for _ in range(3):
    x = flow.randn(8, 6, placement=everyone, sbp=flow.sbp.split(0))
    loss = (x @ w).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    keep = 0.9 if rank == 0 else 1.0
    average.to_local().mul_(keep).add_(w.detach().to_local() * (1 - keep))  # BUG
    print(((x @ average).sum() * 2).item())
