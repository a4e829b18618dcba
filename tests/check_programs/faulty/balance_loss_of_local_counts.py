# layouts: 2; 4
# kind: local op on a global meaning, differs, missing sum, wrong scale
# A router's balancing loss multiplies means over each rank's tokens, and their products are averaged.
import holon as flow

everyone, world = flow.placement.all("cpu"), flow.env.get_world_size()
flow.manual_seed(1)
gate = flow.randn(6, 4, placement=everyone, sbp=flow.sbp.broadcast, requires_grad=True)
optimizer = flow.optim.SGD([gate], lr=0.1)
for _ in range(2):
    x = flow.randn(8, 6, placement=everyone, sbp=flow.sbp.split(0))
    p = (x @ gate).softmax(-1).to_local()
    share = p.mean(0)
    balance = (share * share).sum() * 4 / world  # BUG
    loss = balance.to_global(everyone, flow.sbp.partial_sum)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
