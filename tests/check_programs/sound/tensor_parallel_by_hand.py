# layouts: 2; 4
import holon as flow
from holon.autograd import Function

rank, world = flow.env.get_rank(), flow.env.get_world_size()


class Copy(Function):
    """The same value forward; the sum of gradients backward."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return flow.comm.all_reduce(g.clone())


class Sum(Function):
    """The sum forward; the same gradient backward."""

    @staticmethod
    def forward(ctx, x):
        return flow.comm.all_reduce(x.clone())

    @staticmethod
    def backward(ctx, g):
        return g.clone()


flow.manual_seed(3)
embed = (flow.randn(5, 8) * 0.5).requires_grad_()
up, down = flow.randn(8, 16) * 0.4, flow.randn(16, 8) * 0.4
n = 16 // world
up = up[:, rank * n : (rank + 1) * n].clone().requires_grad_()
down = down[rank * n : (rank + 1) * n].clone().requires_grad_()
optimizer = flow.optim.SGD([embed, up, down], lr=0.1)
for _ in range(3):
    ids = flow.randint(0, 5, (6,))
    x = embed[ids]
    h = (Copy.apply(x) @ up).tanh()
    y = Sum.apply(h @ down) + x
    loss = (y * y).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
