# layouts: 2; 4
# kind: wrong scale, differs
# The learning rate is multiplied by the number of ranks although gradients are means.
import holon as flow

everyone, world = flow.placement.all("cpu"), flow.env.get_world_size()
flow.manual_seed(1)
w = flow.randn(6, 6, placement=everyone, sbp=flow.sbp.broadcast, requires_grad=True)
optimizer = flow.optim.Adam([w], lr=0.01 * world)
for _ in range(3):
    x = flow.randn(8, 6, placement=everyone, sbp=flow.sbp.split(0))
    loss = (x @ w).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # BUG
