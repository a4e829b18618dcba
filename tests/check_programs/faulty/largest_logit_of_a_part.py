# layouts: 2
# kind: local op on a global meaning, differs
# A cross-entropy by hand over a split vocabulary subtracts each rank's own largest logit.
import holon as flow

rank, everyone = flow.env.get_rank(), flow.placement.all("cpu")
flow.manual_seed(1)
w = flow.randn(6, 8, placement=everyone, sbp=flow.sbp.split(1), requires_grad=True)
optimizer = flow.optim.SGD([w], lr=0.1)
for _ in range(2):
    x = flow.randn(4, 6, placement=everyone, sbp=flow.sbp.broadcast)
    logits = (x @ w).to_local()
    largest = logits.detach().max(dim=1, keepdim=True)[0]  # BUG
    e = (logits - largest).exp()
    total = e.sum(1, keepdim=True).to_global(everyone, flow.sbp.partial_sum).to_global(sbp=flow.sbp.broadcast)
    p = e.to_global(everyone, flow.sbp.split(1)) / total
    loss = -p[:, 2].log().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
