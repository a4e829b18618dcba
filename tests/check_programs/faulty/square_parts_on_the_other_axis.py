# layouts: 2
# kind: wrong slice, local op on a global meaning
# The parts of a square product are put together along the wrong axis.
import holon as flow

everyone = flow.placement.all("cpu")
flow.manual_seed(1)
x = flow.randn(4, 8, placement=everyone, sbp=flow.sbp.split(0))
w = flow.randn(8, 4, placement=everyone, sbp=flow.sbp.broadcast)
y = (x @ w).to_local().tanh()
n = y.shape[0]
left = y.reshape(n * 4)
z = left.to_global(everyone, flow.sbp.split(0)).reshape(4, 4)
part = z.to_local()
z = part.transpose(0, 1).reshape(n, 4).to_global(everyone, flow.sbp.split(0))  # BUG
v = flow.arange(16, placement=everyone, sbp=flow.sbp.broadcast).reshape(4, 4).float()
print((z * v).sum().item())
