# layouts: 2
# kind: wrong slice, data read twice or never
# Position embeddings by each rank's own positions under a split sequence (huggingface/diffusers#14265).
import holon as flow

everyone = flow.placement.all("cpu")
split, copy = flow.sbp.split, flow.sbp.broadcast
flow.manual_seed(1)
table = flow.randn(16, 8, placement=everyone, sbp=copy)
w = flow.randn(8, 8, placement=everyone, sbp=copy, requires_grad=True)
optimizer = flow.optim.SGD([w], lr=0.1)
for _ in range(2):
    x = flow.randn(12, 8, placement=everyone, sbp=split(0))
    n = x.to_local().shape[0]
    positions = table.to_local()[:n]  # BUG
    h = x + positions.to_global(everyone, split(0))
    loss = (h @ w).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
