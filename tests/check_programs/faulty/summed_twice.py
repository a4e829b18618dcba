# layouts: 2; 4
# kind: sum twice
# A gradient that backward has summed is summed again by hand (NVIDIA/Megatron-LM#7452).
import holon as flow

everyone = flow.placement.all("cpu")
flow.manual_seed(1)
w = flow.randn(6, 4, placement=everyone, sbp=flow.sbp.broadcast, requires_grad=True)
optimizer = flow.optim.SGD([w], lr=0.01)
for _ in range(3):
    x = flow.randn(8, 6, placement=everyone, sbp=flow.sbp.split(0))
    loss = (x @ w).square().mean()
    optimizer.zero_grad()
    loss.backward()
    with flow.no_grad():
        flow.comm.all_reduce(w.grad.to_local())  # BUG
    optimizer.step()
