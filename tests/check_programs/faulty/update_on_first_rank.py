# layouts: 2
# kind: stale replica, rank-dependent branch, drifted replicas
# Weights are updated on one rank and not sent to the others.
import holon as flow

rank, everyone = flow.env.get_rank(), flow.placement.all("cpu")
flow.manual_seed(1)
w = flow.randn(6, 4, placement=everyone, sbp=flow.sbp.broadcast, requires_grad=True)
for _ in range(3):
    x = flow.randn(8, 6, placement=everyone, sbp=flow.sbp.split(0))
    loss = (x @ w).square().mean()
    w.grad = None
    loss.backward()
    with flow.no_grad():
        if rank == 0:
            w.to_local().sub_(0.1 * w.grad.to_local())  # BUG
