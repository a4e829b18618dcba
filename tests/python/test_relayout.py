"""relayout: a job goes on in another layout, with the same values, in little memory."""

import json

import pytest
from harness import ranks

import holon as flow
from holon import nn

B, S = flow.sbp.broadcast, flow.sbp.split
PROGRAM = """
import json
import sys

import holon as flow
from holon import nn

B, S = flow.sbp.broadcast, flow.sbp.split
rank = flow.env.get_rank()
row = flow.placement("cpu", [0, 1, 2, 3])
grid = flow.placement("cpu", [[0, 1], [2, 3]])
first, second, three = (flow.placement("cpu", r) for r in ([0, 1], [2, 3], [0, 1, 2]))


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width, placement=row, sbp=B)
        self.down = nn.Linear(4 * width, width, placement=row, sbp=B)

    def forward(self, x):
        return x + self.down(flow.gelu(self.up(x)))


LAYOUTS = {
    "dp4": (row, B),
    "tp4": (row, {"*up.*": S(0), "*down.weight": S(1), "*": B}),
    "dp2 x tp2": (grid, lambda name: [B, S(1) if "down.weight" in name else S(0) if "up." in name else B]),
    "pp2 x dp2": {"[0123].*": (first, B), "[4567].*": (second, B), "up.*": (first, B), "down.*": (second, B)},
    "three": (three, S(0)),
}
"""

VALUES = (
    PROGRAM
    + """
flow.manual_seed(0)
model = Model(16)
adam = flow.optim.AdamW(model.parameters(), lr=0.01)
(model(flow.randn(8, 16, placement=row, sbp=S(0))) ** 2).mean().backward()
adam.step()
objects = [*model.parameters(), *(t for p in model.parameters() for t in (p.grad, *adam.state[p].values()))]
objects = [t for t in objects if isinstance(t, flow.Tensor)]
values = [t.numpy() for t in objects]
same = []
for name, layout in LAYOUTS.items():
    moved = flow.relayout([model, adam], layout)
    same.append(all((t.numpy() == v).all() for t, v in zip(objects, values)))
    same.append(all(adam.state[p]["exp_avg"].placement == p.placement for p in model.parameters()))
held = sum(p.to_local().numel() for p in model.parameters()) if rank < 3 else 0
print(json.dumps({"rank": rank, "same": same, "parts": held}))
"""
)

# 64 MiB of parameters and 128 of Adam's state: a copy of all of it would show.
MEMORY = (
    PROGRAM
    + """
model = nn.Sequential(*(Model(512) for _ in range(8)))
adam = flow.optim.AdamW(model.parameters(), lr=0.01)
(model(flow.randn(4, 512, placement=row, sbp=S(0))) ** 2).mean().backward()
adam.step()
adam.zero_grad(set_to_none=True)

excess = []
for layout in ["tp4", "dp4", "dp2 x tp2", "pp2 x dp2", "tp4", "pp2 x dp2", "three", "dp4"]:
    before = flow.cpu.memory_allocated()
    flow.cpu.reset_peak_memory_stats()
    flow.relayout([model, adam], LAYOUTS[layout])
    after, peak = flow.cpu.memory_allocated(), flow.cpu.max_memory_allocated()
    excess.append((peak - max(before, after)) / 2**20)
print(json.dumps({"rank": rank, "excess": excess}))
"""
)

GRAPH = (
    PROGRAM
    + """
class Step(nn.Graph):
    def __init__(self, model, adam):
        super().__init__()
        self.model = model
        self.add_optimizer(adam)

    def build(self, x):
        loss = (self.model(x) ** 2).mean()
        loss.backward()
        return loss


losses = []
for moves in (False, True):
    flow.manual_seed(0)
    model = Model(16)
    adam = flow.optim.AdamW(model.parameters(), lr=0.01)
    step = Step(model, adam)
    losses.append([])
    for i in range(24):
        if moves and i == 4:
            for layout in ("tp4", "pp2 x dp2", "dp4"):
                flow.relayout([model, adam], LAYOUTS[layout])
        losses[-1].append(step(flow.randn(8, 16, placement=row, sbp=S(0))).item())
        if moves and i == 12:
            flow.relayout([model, adam], LAYOUTS["tp4"])
print(json.dumps({"rank": rank, "losses": losses}))
"""
)


def results(tmp_path, program, size=4, **environment):
    path = tmp_path / "program.py"
    path.write_text(program)
    done = ranks.launch(path, size, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return sorted(found, key=lambda r: r["rank"])


def test_values_stay(tmp_path):
    found = results(tmp_path, VALUES)
    assert [all(r["same"]) and len(r["same"]) == 10 for r in found] == [True] * 4
    assert found[3]["parts"] == 0 and sum(r["parts"] for r in found) == 16 * 64 * 2 + 64 + 16


def test_little_memory(tmp_path):
    for r in results(tmp_path, MEMORY):
        assert max(r["excess"]) < 8, r  # the parts of the largest tensor, of 4 MiB, before and after


def test_graphs_go_on(tmp_path):
    for r in results(tmp_path, GRAPH):
        there_and_back, moved = r["losses"]
        assert there_and_back[:13] == moved[:13]
        assert moved == pytest.approx(there_and_back, rel=1e-4)


def model_on_one():
    here = flow.placement("cpu", [0])
    model = nn.Linear(4, 6, placement=here, sbp=B)
    return model, flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), here


def test_plans():
    model, sgd, here = model_on_one()
    for plan in (
        (here, S(0)),
        (here, {"weight": S(1), "*": B}),
        (here, lambda name: S(0)),
        {"weight": (here, S(1)), "*": None},
        lambda name: (here, S(1)) if name == "weight" else None,
    ):
        assert flow.relayout([model, sgd], plan) == 0
        assert flow.relayout(model, (here, B)) == 0


def test_bad_input():
    model, _, here = model_on_one()
    other = flow.optim.SGD(nn.Linear(2, 2, placement=here, sbp=B).parameters(), lr=0.1)
    with pytest.raises(ValueError, match="in none of the modules"):
        flow.relayout([model, other], (here, B))
    with pytest.raises(TypeError, match="modules and optimizers, got int"):
        flow.relayout([model, 3], (here, B))
    with pytest.raises(TypeError, match=r"pair \(placement, sbp\)"):
        flow.relayout(model, here)
    with pytest.raises(ValueError, match="no pattern of the plan fits 'bias'"):
        flow.relayout(model, {"weight": (here, B)})
    with pytest.raises(ValueError, match="'weight'.* is local"):
        flow.relayout(nn.Linear(4, 6), (here, B))
    with pytest.raises(ValueError, match="the sbp P of .weight. does not fit"):
        flow.relayout(model, (here, flow.sbp.partial_sum))
    assert model.weight.sbp == (B,)
