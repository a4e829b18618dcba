# layouts: 2; 4
# kind: wrong scale, differs
# Scores are divided by the root of the width that this rank holds.
import holon as flow

everyone = flow.placement.all("cpu")
split, copy = flow.sbp.split, flow.sbp.broadcast
flow.manual_seed(1)
wq = flow.randn(16, 16, placement=everyone, sbp=split(1), requires_grad=True)
wk = flow.randn(16, 16, placement=everyone, sbp=split(1), requires_grad=True)
optimizer = flow.optim.SGD([wq, wk], lr=0.1)
for _ in range(2):
    x = flow.randn(5, 16, placement=everyone, sbp=copy)
    q, k = ((x @ w).reshape(5, 4, 4).transpose(0, 1) for w in (wq, wk))
    width = q.to_local().shape[0] * q.to_local().shape[2]
    scores = q @ k.transpose(1, 2) / width**0.5  # BUG
    loss = scores.softmax(-1)[:, :, 0].sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
