"""Split parameters stay where they are, eagerly and in graphs:
tensor parallelism does not turn into gathering weights."""

import json

import pytest
from harness import ranks

PROGRAM = """
import json
import sys

sys.path.insert(0, sys.argv[2])
import numpy as np

import holon as flow
from holon import nn
from model import GPT, Layout

B, S = flow.sbp.broadcast, flow.sbp.split
size, rank = flow.env.get_world_size(), flow.env.get_rank()
everywhere = flow.placement("cpu", list(range(size)))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width, placement=everywhere, sbp=S(0))
        self.down = nn.Linear(4 * width, width, placement=everywhere, sbp=S(1))

    def forward(self, x):
        return x + self.down(flow.gelu(self.up(x)))


class Blocks(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.blocks = nn.Sequential(*(Block(width) for _ in range(8)))

    def loss(self, x):
        return (self.blocks(x) ** 2).mean()


class Step(nn.Graph):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.05))

    def build(self, *batch):
        loss = self.model.loss(*batch)
        loss.backward()
        return loss


# Tokens outnumber features by far, so that whole weights would be the least to move.
def blocks():
    flow.manual_seed(1)
    model = Blocks(16)
    return model, [flow.randn(600, 16, placement=everywhere, sbp=B)]


def gpt():
    flow.manual_seed(1)
    model = GPT(2, 32, 4, 64, Layout.over(size // 2 or 1, 2 if size > 1 else 1))
    text = np.random.default_rng(0).integers(0, 256, (16, 65))
    return model, model.pair(text[:, :-1], text[:, 1:])


def run(make):
    model, batch = make()
    flow._C.reset_boxing_counters()
    loss = model.loss(*batch)
    loss.backward()
    eager = flow.boxing.counters()["parameters"]
    squares = sum((p.grad.to(flow.float64) ** 2).sum().item() for p in model.parameters())
    flow._C.reset_boxing_counters()
    graph = Step(model)
    losses = [loss.item(), squares] + [graph(*batch).item() for _ in range(3)]
    return eager, flow.boxing.counters()["parameters"], losses


make = {"blocks": blocks, "gpt": gpt}[sys.argv[1]]
kept = run(make)
with flow.boxing.parameter_policy("gather"):
    gathered = run(make)
if rank == 0:
    print(json.dumps([kept, gathered]))
"""


@pytest.mark.parametrize("model", ["blocks", "gpt"])
def test_tensor_parallel_models_gather_no_weights(tmp_path, model):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    arguments = [model, ranks.ROOT / "examples" / "gpt"]
    done = ranks.launch(program, 4, arguments=arguments, HOLON_MACHINE_COSTS="fixed")
    assert done.returncode == 0, done.stderr
    kept, gathered = json.loads(done.stdout)
    assert kept[:2] == [0, 0]
    assert gathered[0] > 0 and gathered[1] > 0, "the policy makes no difference"
    assert "a parameter is redistributed" not in done.stderr
    alone = ranks.launch(program, 1, arguments=arguments, HOLON_MACHINE_COSTS="fixed")
    assert alone.returncode == 0, alone.stderr
    truth = json.loads(alone.stdout)[0][2]
    assert kept[2] == pytest.approx(truth, rel=2e-5)
    assert gathered[2] == pytest.approx(truth, rel=2e-5)


FROZEN = """
import holon as flow
from holon import nn

B, S = flow.sbp.broadcast, flow.sbp.split
where = flow.placement("cpu", [0, 1])
base = nn.Parameter(flow.randn(16, 16, placement=where, sbp=S(0)), requires_grad=False)
assert not base.requires_grad and base.is_leaf
x = flow.randn(400, 16, placement=where, sbp=S(0))
a = nn.Parameter(flow.randn(2, 16, placement=where, sbp=B))
b = nn.Parameter(flow.zeros(16, 2, placement=where, sbp=B))
flow._C.reset_boxing_counters()
linear = nn.functional.linear
y = linear(x, base) + linear(linear(x, a), b)
y.sum().backward()
counted = flow.boxing.counters()
assert counted["moves"] > 0 and counted["parameters"] == 0, counted
for _ in range(3):
    nn.functional.layer_norm(x, (16,), nn.Parameter(flow.ones(16, placement=where, sbp=S(0))))
events = [e for e in flow.boxing.events() if e["parameter"]]
assert len(events) == 3 and events[0]["from"].startswith("S(0)"), events
with flow.boxing.parameter_policy("gather"):
    nn.functional.layer_norm(x, (16,), nn.Parameter(flow.ones(16, placement=where, sbp=S(0))))
print("done")
"""


def test_frozen_bases_stay_and_what_cannot_be_helped_is_told_once(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(FROZEN)
    done = ranks.launch(program, 2, HOLON_MACHINE_COSTS="fixed")
    assert done.returncode == 0 and done.stdout.split() == ["done", "done"], done.stderr
    assert done.stderr.count("a parameter is redistributed") == 1, done.stderr
    assert "program.py:" in done.stderr and "layer_norm" in done.stderr


def test_the_policy_is_one_of_two():
    import holon as flow

    with pytest.raises(ValueError, match="keep"):
        flow.boxing.parameter_policy("sometimes")
