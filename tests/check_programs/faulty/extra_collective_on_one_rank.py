# layouts: 2; 3
# kind: rank-dependent branch
# Only one rank enters a collective, and the others wait elsewhere (Oneflow-Inc/oneflow#10313, jax-ml/jax#38503).
import holon as flow

rank, everyone = flow.env.get_rank(), flow.placement.all("cpu")
flow.manual_seed(1)
w = flow.randn(6, 4, placement=everyone, sbp=flow.sbp.broadcast, requires_grad=True)
for step in range(2):
    x = flow.randn(8, 6, placement=everyone, sbp=flow.sbp.split(0))
    y = x @ w
    if rank == 0 and step == 1:
        print(y.numpy().max())  # BUG
    loss = y.square().mean()
    w.grad = None
    loss.backward()
    with flow.no_grad():
        w -= 0.1 * w.grad
