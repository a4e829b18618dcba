# layouts: 2
# kind: dropped gradient
# Keys are gathered over the sequence by a collective that has no gradient (huggingface/diffusers#14265).
import holon as flow

rank, world = flow.env.get_rank(), flow.env.get_world_size()
everyone = flow.placement.all("cpu")
flow.manual_seed(1)
w = flow.randn(8, 8, placement=everyone, sbp=flow.sbp.broadcast, requires_grad=True)
optimizer = flow.optim.SGD([w], lr=0.1)
for _ in range(2):
    x = flow.randn(8, 8, placement=everyone, sbp=flow.sbp.split(0))
    k = x @ w
    whole = k.to_local()
    if world > 1:
        whole = flow.zeros(8, 8)
        flow.comm.all_gather_into_tensor(whole, k.to_local())  # BUG
    whole = whole.to_global(everyone, flow.sbp.broadcast)
    scores = x @ whole.transpose(0, 1)
    loss = (scores.softmax(-1) @ (x @ w).to_global(sbp=flow.sbp.broadcast)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
