"""A rank of test_graph_hosts.py: `graph_program.py MODE ARGUMENTS`, where the modes are functions below."""

import json
import sys
from pathlib import Path

import numpy as np

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / "training"), str(TESTS / "faults")]

import graphs  # noqa: E402
from test_graph_equality import Convnet, Gpt, Layout, compiled  # noqa: E402

import holon as flow  # noqa: E402
from holon import nn  # noqa: E402


class Across(Layout):
    """Neighbours in rank are of different stages: the ranks of one stage are on several hosts."""

    def placement(self, stage):
        ranks = np.arange(self.dp * self.tp) * self.pp + stage
        return flow.placement("cpu", ranks.reshape(self.dp, self.tp).tolist())


LAYOUTS = {"in a row": Layout, "across": Across}
MODELS = {"Gpt": Gpt, "Convnet": Convnet}


def save(path, result):
    losses, state = result
    np.savez(path, losses=np.array(losses), **state)


def train(model, layout, shape, options, path):
    result = compiled(MODELS[model], LAYOUTS[layout](*json.loads(shape)), json.loads(options))
    if flow.env.get_rank() == 0:
        save(path, result)


def work(kind):
    """Steps and nothing else, until it is ended: a pipeline of all ranks, or data-parallel ones."""
    world, parallel = flow.env.get_world_size(), kind == "parallel"
    train = graphs.Train(world, parallel)
    first = train.model.placements[0]
    x = flow.ones(16 * world, 16, placement=first, sbp=train.model.rows)
    train(x)
    print(f"rank {flow.env.get_rank()} is ready", flush=True)
    while True:
        train(x)


class Another(nn.Graph):
    """Not the same graph on all ranks. what: the difference; other: whether it is on this rank."""

    def __init__(self, what, other):
        super().__init__()
        self.what, self.other = what, other
        world = flow.placement("cpu", ranks=list(range(flow.env.get_world_size())))
        self.model = nn.Linear(4, 4).to_global(world, flow.sbp.broadcast)
        self.add_optimizer(flow.optim.SGD(self.model.parameters(), lr=0.01))
        self.config.enable_zero(what == "config" and other, stage=1)

    def build(self, x):
        y = self.model(x)
        y = flow.relu(y) if self.what == "op" and self.other else flow.tanh(y)
        y = y * (3.0 if self.what == "constant" and self.other else 2.0)
        loss = y.mean()
        loss.backward()
        return loss


def mismatch(what):
    world = flow.env.get_world_size()
    where = flow.placement("cpu", ranks=list(range(world)))
    x = flow.ones(2 * world, 4, placement=where, sbp=flow.sbp.split(0))
    Another(what, flow.env.get_rank() >= world // 2)(x)


if __name__ == "__main__":
    {"train": train, "work": work, "mismatch": mismatch}[sys.argv[1]](*sys.argv[2:])
