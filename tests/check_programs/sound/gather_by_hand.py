# layouts: 2; 3
import holon as flow
from holon.autograd import Function

rank, world = flow.env.get_rank(), flow.env.get_world_size()


class Gather(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.n = x.shape[0]
        whole = flow.zeros(x.shape[0] * world, x.shape[1])
        flow.comm.all_gather_into_tensor(whole, x)
        return whole

    @staticmethod
    def backward(ctx, g):
        return g[rank * ctx.n : (rank + 1) * ctx.n].clone()


flow.manual_seed(1)
a, b = flow.randn(6, 4), flow.randn(4, 3)
n = 6 // world
a = a[rank * n : (rank + 1) * n].clone().requires_grad_()
b.requires_grad_()
optimizer = flow.optim.SGD([a, b], lr=0.1)
for _ in range(2):
    x = Gather.apply(a.tanh())
    loss = ((x @ b).cumsum(0)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
