"""Steps of data-parallel, tensor-parallel and pipelined training on devices give the numbers of the CPU."""

import os
import sys

import numpy as np

import holon as flow
from holon import nn

rank, world = flow.env.get_rank(), flow.env.get_world_size()
S, B = flow.sbp.split, flow.sbp.broadcast
everyone = list(range(world))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(12, 16), nn.Linear(16, 5)

    def forward(self, x):
        return self.two(flow.relu(self.one(x)))


def train(kind, layout, graph=False, steps=3):
    flow.manual_seed(3)
    everywhere = flow.placement(kind, everyone)
    net = Net()
    if layout == "data":
        net = net.to_global(everywhere, B)
        place, x_sbp, y_place, y_sbp = everywhere, S(0), everywhere, S(0)
    elif layout == "tensor":
        net.one.to_global(everywhere, S(0))
        net.two.weight = nn.Parameter(net.two.weight.detach().to_global(everywhere, S(1)))
        net.two.bias = nn.Parameter(net.two.bias.detach().to_global(everywhere, B))
        place, x_sbp, y_place, y_sbp = everywhere, B, everywhere, B
    else:
        first, last = flow.placement(kind, everyone[: world // 2]), flow.placement(kind, everyone[world // 2 :])
        net.one.to_global(first, B)
        net.two.to_global(last, B)
        place, x_sbp, y_place, y_sbp = first, S(0), last, S(0)
        plain = net.two.forward
        net.two.forward = lambda h: plain(h.to_global(last, S(0)))
    optimizer = flow.optim.Adam(net.parameters(), lr=0.05)
    rng = np.random.default_rng(5)
    xs, ys = rng.standard_normal((steps, 8, 12)).astype("float32"), rng.integers(0, 5, (steps, 8))
    losses = []

    def step(x, y):
        loss = flow.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        return loss

    if graph:

        class Step(nn.Graph):
            def __init__(self):
                super().__init__()
                self.net = net
                self.add_optimizer(optimizer)

            def build(self, x, y):
                return step(x, y)

        compiled = Step()
    for x, y in zip(xs, ys):
        x = flow.tensor(x).to(kind).to_global(flow.placement(kind, everyone), B).to_global(place, x_sbp)
        y = flow.tensor(y).to(kind).to_global(flow.placement(kind, everyone), B).to_global(y_place, y_sbp)
        if graph:
            loss = compiled(x, y)
        else:
            optimizer.zero_grad()
            loss = step(x, y)
            nn.utils.clip_grad_norm_(list(net.parameters()), 1.0)
            optimizer.step()
        losses.append(loss.item())
    everywhere_cpu = flow.placement("cpu", everyone)
    return losses, [p.detach().to_global(everywhere_cpu, B).to_local().numpy() for p in net.parameters()]


for layout in ("data", "tensor", "pipeline"):
    for graph in (False, True)[: 1 + ("graph" in os.environ.get("WORDS", ""))]:
        host, device = train("cpu", layout, graph), train("cuda", layout, graph)
        np.testing.assert_allclose(host[0], device[0], rtol=2e-6, err_msg=f"{layout} losses, graph {graph}")
        for a, b in zip(host[1], device[1]):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6, err_msg=f"{layout} parameters, graph {graph}")
        sys.stdout.write(f"rank {rank}: {layout}{' graph' if graph else ''} agrees\n")
