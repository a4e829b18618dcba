"""A pipeline over all ranks, trained by nn.Graph, in which one rank misbehaves."""

import os
import sys
import time

import numpy as np
import programs

import holon as flow
from holon import nn

B, S = flow.sbp.broadcast, flow.sbp.split


class Model(nn.Module):
    def __init__(self, world, parallel):
        super().__init__()
        self.placements = [flow.placement("cpu", ranks=list(range(world)) if parallel else [r]) for r in range(world)]
        self.rows = S(0) if parallel else B
        self.stages = nn.ModuleList(nn.Linear(16, 16).to_global(p, B) for p in self.placements)

    def forward(self, x):
        for stage, p in zip(self.stages, self.placements):
            x = flow.tanh(stage(x.to_global(p, self.rows)))
        return x


def sour():
    raise ValueError("the milk is sour")


class Train(nn.Graph):
    def __init__(self, world, parallel, before_build=None):
        super().__init__()
        self.model = Model(world, parallel)
        self.before_build = before_build
        if not parallel:
            for i, (stage, p) in enumerate(zip(self.model.stages, self.model.placements)):
                stage.to(nn.graph.GraphModule).set_stage(i, p)
        self.add_optimizer(flow.optim.SGD(self.model.parameters(), lr=0.01))
        self.config.set_gradient_accumulation_steps(4)

    def build(self, x):
        if self.before_build:
            self.before_build()
        loss = self.model(x).square().mean()
        loss.backward()
        return loss


def run(seed, world, steps, fault=None, culprit=None, at=None):
    """At step `at` the rank `culprit` does what `fault` says. Odd seeds: a pipeline; even ones: data-parallel."""
    parallel, rank = seed % 2 == 0, flow.env.get_rank()
    train, other = Train(world, parallel), Train(world, parallel)
    rows = 16 * world
    first = train.model.placements[0]

    def batch(rows, width=16):
        x = flow.tensor(np.full((rows, width), 0.5, np.float32), placement=first, sbp=B)
        return x.to_global(first, train.model.rows)

    losses = train(batch(rows))
    other(batch(2 * rows))
    for i in range(steps):
        misbehaves = i == at and rank == culprit
        if misbehaves:
            print(f"fault at {time.monotonic()}", file=sys.stderr, flush=True)
        if i == at and fault == "build":  # captured anew by all
            train.before_build = sour if misbehaves else None
            losses = train(batch(2 * rows))
        elif misbehaves and fault == "other graph":
            losses = other(batch(2 * rows))
        elif misbehaves and fault != "skip":
            programs.misbehave(type("Program", (), {"world": world}), fault)
        else:
            if not misbehaves:
                losses = train(batch(rows))
        assert np.isfinite(losses.mean().item()), os.getpid()
