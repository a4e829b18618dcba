# layouts: 2; 4
# kind: local op on a global meaning, missing sum, wrong scale
# The norm of a gradient is that of each rank's part (radixark/miles_diffusion#35, pytorch/pytorch#159856).
import holon as flow

everyone = flow.placement.all("cpu")
flow.manual_seed(1)
w = flow.randn(8, 4, placement=everyone, sbp=flow.sbp.split(0), requires_grad=True)
optimizer = flow.optim.SGD([w], lr=0.1)
for _ in range(3):
    x = flow.randn(6, 8, placement=everyone, sbp=flow.sbp.broadcast)
    loss = (x @ w).square().mean()
    optimizer.zero_grad()
    loss.backward()
    part = w.grad.to_local()
    norm = part.norm()  # BUG
    part.mul_(0.5 / norm)
    optimizer.step()
