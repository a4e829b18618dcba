# layouts: 2; 4
# kind: missing sum, sum twice
# The residual joins before the sum over ranks, on each of them (NVIDIA/Megatron-LM#7452).
import holon as flow

rank, world = flow.env.get_rank(), flow.env.get_world_size()
flow.manual_seed(1)
x = flow.randn(4, 8)
up, down = flow.randn(8, 8), flow.randn(8, 8)
n = 8 // world
h = (x @ up[:, rank * n : (rank + 1) * n]).relu()
y = h @ down[rank * n : (rank + 1) * n] + x  # BUG
flow.comm.all_reduce(y)
y = y.to_global(flow.placement.all("cpu"), flow.sbp.broadcast)
print(y.softmax(-1).max().item())
