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


EXPERTS = {
    "model_type": "mixtral",
    "vocab_size": 23,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "initializer_range": 0.3,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "output_router_logits": True,
    "router_aux_loss_coef": 0.1,
}


def losses_of_experts(layout, graph):
    """Of three steps; rows are uneven on more than one rank."""
    flow.manual_seed(3)
    model = flow.models.from_config(EXPERTS, **layout)
    placements, rows = model.placements, (flow.sbp.split(0),) * (len(model.placements[0].hierarchy) - 1)
    ids = np.arange(7 * 9).reshape(7, 9) ** 2 % 23
    first, last = (
        flow.tensor(ids, placement=p, sbp=(*rows, flow.sbp.broadcast)) for p in (placements[0], placements[-1])
    )
    optimizer = flow.optim.SGD(model.parameters(), lr=0.05)

    class Step(nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)
            if len(placements) > 1:
                for part, stage, placement in model.stages():
                    part.to(nn.graph.GraphModule).set_stage(stage, placement)

        def build(self, ids, labels):
            loss = self.model.loss(ids, labels=labels)
            loss.backward()
            return loss

    def eager(ids, labels):
        optimizer.zero_grad()
        loss = model.loss(ids, labels=labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = Step() if graph else eager
    everywhere = flow.placement.all("cpu")
    return [step(first, last).mean().to_global(everywhere, flow.sbp.broadcast).item() for _ in range(3)]


def experts(layout, path):
    found = {kind: losses_of_experts(json.loads(layout), kind == "graph") for kind in ("eager", "graph")}
    if flow.env.get_rank() == 0:
        Path(path).write_text(json.dumps(found))


if __name__ == "__main__":
    {"train": train, "work": work, "mismatch": mismatch, "experts": experts}[sys.argv[1]](*sys.argv[2:])
