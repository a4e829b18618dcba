# layouts: 2; 4
# kind: wrong scale, missing sum
# Gradients of experts, which one rank has whole, are averaged like those of shared parameters.
import holon as flow

rank, world = flow.env.get_rank(), flow.env.get_world_size()
everyone = flow.placement.all("cpu")
flow.manual_seed(1)
shared = flow.randn(6, 6, placement=everyone, sbp=flow.sbp.broadcast, requires_grad=True)
experts = flow.randn(4, 6, 6, placement=everyone, sbp=flow.sbp.split(0), requires_grad=True)
optimizer = flow.optim.Adam([shared, experts], lr=0.01)
for _ in range(2):
    x = flow.randn(8, 6, placement=everyone, sbp=flow.sbp.broadcast)
    y = flow.einsum("tc,ecd->etd", x @ shared, experts).tanh().sum(0)
    loss = y.square().mean()
    optimizer.zero_grad()
    loss.backward()
    with flow.no_grad():
        experts.grad.to_local().mul_(1 / world)  # BUG
    optimizer.step()
