# layouts: 2
# kind: missing sum
# The local part of a partial sum is taken for its value (pytorch/pytorch#167213).
import holon as flow

everyone = flow.placement.all("cpu")
flow.manual_seed(1)
w = flow.randn(6, 4, placement=everyone, sbp=flow.sbp.broadcast, requires_grad=True)
for _ in range(2):
    x = flow.randn(8, 6, placement=everyone, sbp=flow.sbp.split(0))
    loss = (x @ w).square().sum()
    w.grad = None
    loss.backward()
    scale = loss.to_local().detach().sqrt()  # BUG
    with flow.no_grad():
        step = scale.to_global(everyone, flow.sbp.broadcast)
        w -= 0.01 * w.grad / step
