"""A compiled training step on toy devices: losses and parameters are those of the CPU."""

import sys

import numpy as np

import holon as flow
from holon import nn

rank, world = flow.env.get_rank(), flow.env.get_world_size()
STEPS = 4


def train(kind, rule, clipped):
    flow.manual_seed(3)
    place = flow.placement(kind, list(range(world)))
    net = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Dropout(0.2), nn.LayerNorm(32), nn.Linear(32, 5))
    net = net.to_global(place, flow.sbp.broadcast())
    optimizer = rule(net.parameters(), lr=0.05)

    class Step(nn.Graph):
        def __init__(self):
            super().__init__()
            self.net = net
            self.add_optimizer(optimizer)

        def build(self, x, y):
            loss = nn.functional.cross_entropy(self.net(x), y)
            loss.backward()
            if clipped:
                nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
            return loss

    step = Step()
    rng = np.random.default_rng(5)
    losses = []
    for _ in range(STEPS):
        x = flow.tensor(rng.standard_normal((8, 12)).astype("float32"))
        y = flow.tensor(rng.integers(0, 5, 8))
        batch = [t.to_global(flow.placement("cpu", list(range(world))), flow.sbp.broadcast()) for t in (x, y)]
        losses.append(step(*[t.to_global(place, flow.sbp.split(0)) for t in batch]).numpy())
    assert step.stats()["recorded"] == 0  # toy devices record nothing
    return np.array(losses), [p.detach().numpy() for p in net.parameters()]


for rule, clipped in ((flow.optim.AdamW, False), (flow.optim.AdamW, True), (flow.optim.LAMB, True)):
    cpu, toy = train("cpu", rule, clipped), train("toy", rule, clipped)
    np.testing.assert_allclose(toy[0], cpu[0], rtol=1e-6)
    for a, b in zip(toy[1], cpu[1]):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
sys.stdout.write(f"rank {rank}: the same losses {toy[0].ravel()[[0, -1]]}\n")
