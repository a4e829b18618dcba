#!/usr/bin/env python3
"""One training step of train.py's MLP, CNN and GPT with deterministic(layout_free=True) against the default: eager, on
one rank, and data-parallel on two with the same global batch. Both sides take turns in the same process."""

import json
import statistics
import time

from train import Cnn, Gpt, mlp

import holon as flow
from holon import nn

WARM_UP, ROUNDS, STEPS = 2, 7, 3


def cases():
    yield "mlp", mlp, (64, 784), 10
    yield "cnn", Cnn, (32, 1, 28, 28), 10
    yield "gpt", Gpt, (8, 128), None


def step_of(make, shape, classes, ranks):
    """A function that makes one step, and returns when it is done."""
    flow.manual_seed(0)
    placement = flow.placement("cpu", list(range(ranks)))
    model = make().to_global(placement, flow.sbp.broadcast)
    optimizer = flow.optim.AdamW(model.parameters(), lr=1e-3)
    place = {"placement": placement, "sbp": flow.sbp.broadcast}
    if classes is None:
        for block in model.blocks:
            block.mask = block.mask.to_global(placement, flow.sbp.broadcast)
        model.positions = model.positions.to_global(placement, flow.sbp.broadcast)
        x = flow.randint(0, 256, shape, **place)
        y = flow.randint(0, 256, (shape[0] * shape[1],), **place)
    else:
        x, y = flow.randn(*shape, **place), flow.randint(0, classes, (shape[0],), **place)
    x, y = (t.to_global(placement, flow.sbp.split(0)) for t in (x, y))

    def step():
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def measure(make, shape, classes, ranks):
    """Median seconds of a step, by default and layout-free."""

    def on_rank(rank):
        step = step_of(make, shape, classes, ranks)
        times = {False: [], True: []}
        for i in range(WARM_UP + ROUNDS):
            for layout_free, kept in times.items():
                with flow.deterministic(layout_free):
                    step()  # the caches are the other side's
                    start = time.perf_counter()
                    for _ in range(STEPS):
                        step()
                    if i >= WARM_UP:
                        kept.append((time.perf_counter() - start) / STEPS)
        return [statistics.median(t) for t in times.values()]

    return flow.run_ranks(ranks, on_rank)[0]


for name, make, shape, classes in cases():
    for ranks in (1, 2):
        default, layout_free = measure(make, shape, classes, ranks)
        line = {
            "name": f"layout_free: {name} step on {ranks} rank{'s' if ranks > 1 else ''}",
            "value": round(layout_free * 1e3, 3),
            "unit": "ms",
            "against": "default",
            "ratio": round(default / layout_free, 3),
        }
        print(json.dumps(line), flush=True)
