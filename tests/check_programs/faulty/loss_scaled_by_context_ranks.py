# layouts: 2; 4
# kind: wrong scale
# The loss is multiplied by the number of ranks of the sequence (NVIDIA/Megatron-LM#673).
import holon as flow

everyone, world = flow.placement.all("cpu"), flow.env.get_world_size()
flow.manual_seed(1)
w = flow.randn(6, 6, placement=everyone, sbp=flow.sbp.broadcast, requires_grad=True)
optimizer = flow.optim.Adam([w], lr=0.01)
for _ in range(3):
    x = flow.randn(2, 8, 6, placement=everyone, sbp=flow.sbp.split(1))
    per_token = (x @ w).square().mean(-1)
    loss = per_token.mean() * world  # BUG
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
