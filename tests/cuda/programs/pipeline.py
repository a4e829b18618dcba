"""A pipeline of stages on devices trains as it does on the CPU, and its data goes from device to device."""

import os
import sys

import numpy as np

import holon as flow
from holon import nn

RANK, WORLD = flow.env.get_rank(), flow.env.get_world_size()
STAGES, S, B = WORLD, flow.sbp.split, flow.sbp.broadcast
if "pairs" in os.environ["WORDS"]:
    STAGES = WORLD // 2


def place(kind, stage):
    width = WORLD // STAGES
    return flow.placement(kind, list(range(stage * width, (stage + 1) * width)))


class Model(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 12)) for _ in range(STAGES)
        )
        for i, stage in enumerate(self.stages):
            stage.to_global(place(kind, i), B)

    def forward(self, x):
        for i, stage in enumerate(self.stages):
            x = stage(x.to_global(place(self.kind, i), S(0)))
        return x


class Train(nn.Graph):
    def __init__(self, model, optimizer, schedule):
        super().__init__()
        self.model = model
        for i, stage in enumerate(model.stages):
            stage.to(nn.graph.GraphModule).set_stage(i, place(model.kind, i))
        self.config.set_gradient_accumulation_steps(6)
        self.config.pipeline(schedule=schedule)
        self.add_optimizer(optimizer)

    def build(self, x, y):
        loss = ((self.model(x) - y) ** 2).mean()
        loss.backward()
        return loss


def train(kind, schedule, steps):
    flow.manual_seed(1)
    model = Model(kind)
    step = Train(model, flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), schedule)
    rng = np.random.default_rng(2)
    everyone, losses = flow.placement("cpu", list(range(WORLD))), []
    for _ in range(steps):
        x, y = (flow.tensor(rng.standard_normal((24, 12)).astype("float32")).to_global(everyone, B) for _ in range(2))
        loss = step(x.to_global(place(kind, 0), S(0)), y.to_global(place(kind, STAGES - 1), S(0)))
        losses.append(loss.to_global(everyone, B).to_local().numpy().mean())
    return losses, [p.detach().to_global(everyone, B).to_local().numpy() for p in model.parameters()]


schedule = os.environ["WORDS"].split()[0]
here, there = train("cpu", schedule, 6), train("cuda", schedule, 6)
np.testing.assert_allclose(there[0], here[0], rtol=1e-5)
for a, b in zip(there[1], here[1]):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
sys.stdout.write(f"rank {RANK}: {schedule} agrees\n")
