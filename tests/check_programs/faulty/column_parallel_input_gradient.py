# layouts: 2
# kind: missing sum
# The gradient of a column-parallel product's input is not summed over the ranks (NVIDIA/Megatron-LM#7452).
import holon as flow
from holon.autograd import Function

rank, world = flow.env.get_rank(), flow.env.get_world_size()


class Sum(Function):
    @staticmethod
    def forward(ctx, x):
        return flow.comm.all_reduce(x.clone())

    @staticmethod
    def backward(ctx, g):
        return g.clone()


flow.manual_seed(3)
first = (flow.randn(8, 8) * 0.5).requires_grad_()
up, down = flow.randn(8, 16) * 0.4, flow.randn(16, 8) * 0.4
n = 16 // world
up = up[:, rank * n : (rank + 1) * n].clone().requires_grad_()
down = down[rank * n : (rank + 1) * n].clone().requires_grad_()
optimizer = flow.optim.SGD([first, up, down], lr=0.1)
for _ in range(3):
    x = flow.randn(6, 8) @ first
    h = x @ up  # BUG
    y = Sum.apply(h.tanh() @ down)
    loss = (y * y).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
