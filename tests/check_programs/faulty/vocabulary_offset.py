# layouts: 2
# kind: wrong slice, differs
# A rank looks up its part of the vocabulary without subtracting where it begins (NVIDIA/Megatron-LM#1754).
import holon as flow

rank, world = flow.env.get_rank(), flow.env.get_world_size()
everyone = flow.placement.all("cpu")
flow.manual_seed(1)
table = flow.randn(16, 8, placement=everyone, sbp=flow.sbp.split(0), requires_grad=True)
optimizer = flow.optim.SGD([table], lr=0.1)
for _ in range(2):
    ids = flow.randint(0, 16, (6,))
    n = 16 // world
    mine = (ids >= rank * n) & (ids < (rank + 1) * n)
    local = ids.clamp(0, n - 1)  # BUG
    x = table.to_local()[local] * mine.float().unsqueeze(-1)
    x = x.to_global(everyone, flow.sbp.partial_sum)
    loss = (x - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
