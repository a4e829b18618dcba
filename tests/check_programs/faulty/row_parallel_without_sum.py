# layouts: 2
# kind: missing sum
# The all-reduce behind a row-parallel product is missing (NVIDIA/Megatron-LM#7452).
import holon as flow

everyone = flow.placement.all("cpu")
flow.manual_seed(1)
x = flow.randn(4, 8, placement=everyone, sbp=flow.sbp.split(1))
w = flow.randn(8, 6, placement=everyone, sbp=flow.sbp.split(0))
bias = flow.randn(6, placement=everyone, sbp=flow.sbp.broadcast)
y = x.to_local() @ w.to_local()
y = y.to_global(everyone, flow.sbp.broadcast)  # BUG
loss = (y + bias).square().mean()
print(loss.item())
