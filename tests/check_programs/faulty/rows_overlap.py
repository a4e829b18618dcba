# layouts: 2; 4
# kind: wrong slice, data read twice or never
# Slices of a batch of tensors overlap by one row.
import holon as flow

rank, world = flow.env.get_rank(), flow.env.get_world_size()
flow.manual_seed(1)
w = flow.randn(6, 4, requires_grad=True)
optimizer = flow.optim.SGD([w], lr=0.1)
data = flow.randn(24, 6)
for step in range(3):
    batch = data[step * 8 : step * 8 + 8]
    n = 8 // world
    begin = max(0, rank * n - 1)
    x = batch[begin : begin + n]  # BUG
    loss = (x @ w).square().mean()
    optimizer.zero_grad()
    loss.backward()
    flow.comm.all_reduce(w.grad)
    w.grad.div_(world)
    optimizer.step()
