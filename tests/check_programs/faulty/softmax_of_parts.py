# layouts: 2; 4
# kind: local op on a global meaning
# The classes are split, and each rank normalises its own.
import holon as flow

everyone = flow.placement.all("cpu")
flow.manual_seed(1)
w = flow.randn(6, 8, placement=everyone, sbp=flow.sbp.split(1), requires_grad=True)
optimizer = flow.optim.SGD([w], lr=0.1)
for _ in range(2):
    x = flow.randn(4, 6, placement=everyone, sbp=flow.sbp.broadcast)
    logits = x @ w
    p = logits.to_local().log_softmax(-1)  # BUG
    p = p.to_global(everyone, flow.sbp.split(1))
    loss = -p[:, 2].mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
