# layouts: 2
# kind: wrong slice
# Parts along the second axis are reshaped and put together along the first (pytorch/pytorch#179502).
import holon as flow

everyone = flow.placement.all("cpu")
flow.manual_seed(1)
x = flow.randn(4, 8, placement=everyone, sbp=flow.sbp.split(1))
w = flow.randn(4, 3, placement=everyone, sbp=flow.sbp.broadcast, requires_grad=True)
flat = x.to_local().reshape(-1, 4)
y = flat.to_global(everyone, flow.sbp.split(0))  # BUG
weights = flow.arange(8, placement=everyone, sbp=flow.sbp.split(0)).float()
loss = ((y @ w).square().mean(-1) * weights).mean()
loss.backward()
print(loss.item())
