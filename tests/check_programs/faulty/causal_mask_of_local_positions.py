# layouts: 2; 4
# kind: wrong slice, local op on a global meaning
# Each rank masks its queries as if its part of the sequence began at 0 (NVIDIA/Megatron-LM#1464).
import holon as flow

everyone = flow.placement.all("cpu")
split, copy = flow.sbp.split, flow.sbp.broadcast
flow.manual_seed(1)
w = flow.randn(8, 24, placement=everyone, sbp=copy, requires_grad=True)
optimizer = flow.optim.SGD([w], lr=0.1)
for _ in range(2):
    x = flow.randn(12, 8, placement=everyone, sbp=split(0))
    q, k, v = (x @ w).chunk(3, -1)
    scores = q @ k.to_global(sbp=copy).transpose(0, 1)
    part = scores.to_local()
    mask = flow.tril(flow.ones(*part.shape))  # BUG
    part = part.masked_fill(mask == 0, -1e9)
    y = part.to_global(everyone, split(0)).softmax(-1) @ v.to_global(sbp=copy)
    loss = (y - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
