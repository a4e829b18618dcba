"""Activation checkpointing (eager: utils.checkpoint; graph: activation_checkpointing) with dropout, and gradient
clipping by clip_grad_norm_, by clip_grad of the optimizer and in a graph. All train alike."""

import numpy as np
import oneflow as flow
import oneflow.nn as nn
import oneflow.nn.functional as F
from oneflow.utils.checkpoint import checkpoint

P = flow.placement.all("cpu")
B, S0 = flow.sbp.broadcast, flow.sbp.split(0)


class Residual(nn.Module):
    def __init__(self, dim, p):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.p = p

    def forward(self, x):
        return x + F.dropout(self.down(F.gelu(self.up(self.norm(x)))), p=self.p, training=self.training)


class Net(nn.Module):
    def __init__(self, p=0.0, recompute=False):
        super().__init__()
        self.blocks = nn.ModuleList([Residual(8, p) for _ in range(3)])
        self.recompute = recompute

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x) if self.recompute else block(x)
        return x


def setup(**options):
    flow.manual_seed(6)
    net = Net(**options).to_global(placement=P, sbp=B)
    optimizer = flow.optim.SGD(
        [{"params": net.parameters(), "lr": 0.5, "clip_grad_max_norm": 0.25, "clip_grad_norm_type": 2.0}]
    )
    return net.train(), optimizer


def batches():
    rng = np.random.default_rng(3)
    for _ in range(4):
        x = rng.standard_normal((4, 8)).astype(np.float32)
        yield flow.tensor(x, placement=P, sbp=S0, requires_grad=True), flow.tensor(np.tanh(3 * x), placement=P, sbp=S0)


def eager(clip, **options):
    net, optimizer = setup(**options)
    losses, norms = [], []
    for x, y in batches():
        loss = F.mse_loss(net(x), y)
        loss.backward()
        assert x.grad.sbp == (S0,)
        if clip == "norm":
            norms.append(float(nn.utils.clip_grad_norm_(net.parameters(), max_norm=0.25, norm_type=2.0)))
        elif clip == "optimizer":
            optimizer.clip_grad()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.numpy().item())
    return losses, norms


class Train(nn.Graph):
    def __init__(self, net, optimizer, recompute):
        super().__init__()
        self.net = net
        if recompute:
            for block in self.net.blocks:
                block.to(nn.graph.GraphModule).activation_checkpointing = True
        self.add_optimizer(optimizer)

    def build(self, x, y):
        loss = F.mse_loss(self.net(x), y)
        loss.backward()
        return loss


def compiled(recompute):
    graph = Train(*setup(), recompute)
    return [graph(x.detach(), y).numpy().item() for x, y in batches()]


def main():
    losses, norms = eager("norm")
    assert max(norms) > 0.25
    for other in (eager("optimizer")[0], eager("norm", recompute=True)[0], compiled(False), compiled(True)):
        np.testing.assert_allclose(other, losses, rtol=1e-4)
    unclipped = eager("none")[0]
    assert abs(unclipped[-1] - losses[-1]) > 1e-4
    # The same masks when they are drawn again.
    plain, again = eager("norm", p=0.5)[0], eager("norm", p=0.5, recompute=True)[0]
    np.testing.assert_allclose(again, plain, rtol=1e-4)
    print("result", *(f"{v:.5f}" for v in losses + plain))


if __name__ == "__main__":
    main()
