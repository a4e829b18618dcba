# layouts: 2
# kind: unsynchronised random numbers
# Each rank adds noise of its own to a router that all share, so that they choose other experts.
import holon as flow

rank, everyone = flow.env.get_rank(), flow.placement.all("cpu")
copy, split = flow.sbp.broadcast, flow.sbp.split
flow.manual_seed(1)
gate = flow.randn(8, 4, placement=everyone, sbp=copy)
experts = flow.randn(4, 8, 8, placement=everyone, sbp=split(0), requires_grad=True)
x = flow.randn(6, 8, placement=everyone, sbp=copy)
logits = x @ gate
flow.manual_seed(100 + rank)
noise = flow.randn(6, 4)  # BUG
weights = (logits.to_local() + noise).softmax(-1)
world = flow.env.get_world_size()
n = 4 // world
mine = weights[:, rank * n : (rank + 1) * n].to_global(everyone, split(1))
y = flow.einsum("tc,ecd->etd", x, experts) * mine.transpose(0, 1).unsqueeze(-1)
loss = y.sum(0).square().mean()
loss.backward()
print(loss.item())
