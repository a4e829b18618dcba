# layouts: 2; 4
# kind: wrong scale, missing sum
# A gradient that is an average already is divided by the number of ranks (verl-project/verl#5867).
import holon as flow

everyone, world = flow.placement.all("cpu"), flow.env.get_world_size()
flow.manual_seed(1)
w = flow.randn(6, 6, placement=everyone, sbp=flow.sbp.broadcast, requires_grad=True)
optimizer = flow.optim.AdamW([w], lr=0.01)
for _ in range(3):
    x = flow.randn(8, 6, placement=everyone, sbp=flow.sbp.split(0))
    loss = (x @ w).square().mean()
    optimizer.zero_grad()
    loss.backward()
    w.grad.div_(world)  # BUG
    optimizer.step()
