# layouts: 2
# kind: missing sum
# A clamp of addends instead of their sum (pytorch/pytorch#165962).
import holon as flow

everyone = flow.placement.all("cpu")
flow.manual_seed(1)
x = flow.randn(4, 8, placement=everyone, sbp=flow.sbp.split(1))
w = flow.randn(8, 6, placement=everyone, sbp=flow.sbp.split(0), requires_grad=True)
y = x.to_local() @ w.to_local()
y = y.clamp(-1, 1)  # BUG
loss = y.to_global(everyone, flow.sbp.partial_sum).square().sum()
loss.backward()
print(loss.item())
