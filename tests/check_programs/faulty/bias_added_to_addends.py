# layouts: 2
# kind: missing sum
# A bias joins a partial sum on every rank (pytorch/pytorch#163193).
import holon as flow

everyone = flow.placement.all("cpu")
flow.manual_seed(1)
x = flow.randn(4, 8, placement=everyone, sbp=flow.sbp.split(1))
w = flow.randn(8, 6, placement=everyone, sbp=flow.sbp.split(0))
b = flow.randn(6, placement=everyone, sbp=flow.sbp.broadcast)
y = x.to_local() @ w.to_local()
y = y + b.to_local()  # BUG
y = y.to_global(everyone, flow.sbp.partial_sum)
print(y.sum().item())
