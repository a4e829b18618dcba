# layouts: 2
# kind: wrong slice
# Queries, keys and values of one matrix are split as one block of columns (NVIDIA/Megatron-LM#7452).
import holon as flow

rank, world = flow.env.get_rank(), flow.env.get_world_size()
everyone = flow.placement.all("cpu")
copy, split = flow.sbp.broadcast, flow.sbp.split
flow.manual_seed(1)
w = (flow.randn(8, 24) * 0.3)[:, rank * 24 // world : (rank + 1) * 24 // world].clone().requires_grad_()
for _ in range(2):
    x = flow.randn(6, 8)
    q, k, v = (x @ w).chunk(3, -1)  # BUG
    y = flow.cat([a.to_global(everyone, split(1)).to_global(sbp=copy) for a in (q, k * 2, v * 3)], -1)
    loss = y.square().mean() + y[:, 0].sum()
    w.grad = None
    loss.backward()
    with flow.no_grad():
        w -= 0.1 * w.grad
