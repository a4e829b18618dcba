"""Compiled steps of all families follow the eager ones of one rank, in pipelines, too."""

import numpy as np
import pytest
from harness.small_models import MODELS

import holon as flow
from holon import nn


def losses(folder, inputs, layout, graph):
    """Of two steps of training."""
    model = flow.models.from_pretrained(folder, **layout)
    placements, rows = model.placements, (flow.sbp.split(0), flow.sbp.broadcast)
    given = {k: flow.tensor(v, placement=placements[-(k == "labels")], sbp=rows) for k, v in inputs.items()}
    optimizer = flow.optim.SGD(model.parameters(), lr=0.01)

    class Step(nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)
            if len(placements) > 1:
                for part, stage, placement in model.stages():
                    part.to(nn.graph.GraphModule).set_stage(stage, placement)

        def build(self, given):
            loss = self.model.loss(**given)
            loss.backward()
            return loss

    def eager(given):
        optimizer.zero_grad()
        loss = model.loss(**given)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = Step() if graph else eager
    everywhere = flow.placement.all("cpu")
    return [step(given).mean().to_global(everywhere, flow.sbp.broadcast).item() for _ in range(2)]


@pytest.mark.parametrize("layout", [{}, {"pp": 2}, {"dp": 2, "tp": 2, "pp": 2}], ids=["one", "pipeline", "all"])
@pytest.mark.parametrize("name", MODELS)
def test_compiled_steps(checkpoints, name, layout):
    folder, _, inputs = checkpoints(name)
    wanted = losses(folder, inputs, {}, graph=False)
    assert wanted[1] < wanted[0]
    n = int(np.prod(list(layout.values()), dtype=int))
    found = flow.run_ranks(n, lambda rank: losses(folder, inputs, layout, graph=True))
    np.testing.assert_allclose(found, [wanted] * n, rtol=1e-5)
