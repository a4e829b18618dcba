# layouts: 2; 4
# kind: wrong slice
# Each rank updates its slice of the weights by another slice of the gradient.
import holon as flow

rank, world = flow.env.get_rank(), flow.env.get_world_size()
everyone = flow.placement.all("cpu")
flow.manual_seed(1)
w = flow.randn(8, 4, placement=everyone, sbp=flow.sbp.split(0), requires_grad=True)
optimizer = flow.optim.SGD([w], lr=0.1)
for _ in range(2):
    x = flow.randn(6, 8, placement=everyone, sbp=flow.sbp.broadcast)
    loss = (x @ w).square().mean()
    optimizer.zero_grad()
    loss.backward()
    whole = w.grad.to_global(sbp=flow.sbp.broadcast).to_local()
    n, other = 8 // world, (rank + 1) % world
    mine = whole[other * n : (other + 1) * n]  # BUG
    w.grad = mine.to_global(everyone, flow.sbp.split(0))
    optimizer.step()
