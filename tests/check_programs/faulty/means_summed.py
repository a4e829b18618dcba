# layouts: 2; 4
# kind: wrong scale
# The loss is a mean on each rank, and the sum of the means is optimised (torchtitan#3029).
import holon as flow

everyone = flow.placement.all("cpu")
flow.manual_seed(1)
w = flow.randn(6, 4, placement=everyone, sbp=flow.sbp.broadcast, requires_grad=True)
optimizer = flow.optim.SGD([w], lr=0.1)
for _ in range(3):
    x = flow.randn(8, 6, placement=everyone, sbp=flow.sbp.split(0))
    y = (x @ w).tanh()
    local = y.to_local().square().mean()
    loss = local.to_global(everyone, flow.sbp.partial_sum)  # BUG
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
