# layouts: 2; 4
# kind: sum twice
# A value that every rank has whole is declared a partial sum (NVIDIA/Megatron-LM#7452).
import holon as flow

everyone = flow.placement.all("cpu")
flow.manual_seed(1)
x = flow.randn(6, 8, placement=everyone, sbp=flow.sbp.broadcast)
w = flow.randn(8, 4, placement=everyone, sbp=flow.sbp.broadcast)
h = x.to_local() @ w.to_local()
y = h.to_global(everyone, flow.sbp.partial_sum)  # BUG
print(y.softmax(-1).numpy())
