"""Graphs under a contract: what a compilation takes from the file instead of the planner, and what deviates."""

import re

import pytest
from harness.contracts import LAYOUTS, command
from harness.ranks import ROOT

GPT = f"""
import sys

sys.path.insert(0, {str(ROOT / "examples/gpt")!r})
import numpy as np

import holon as flow
from holon import _C, nn
from model import GPT, Layout

dp, tp, stages = map(int, sys.argv[1:4])


class Step(nn.Graph):
    def __init__(self, model, optimizer):
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)
        self.config.set_gradient_accumulation_steps(stages)
        if stages > 1:
            for part, stage in model.stages():
                part.to(nn.graph.GraphModule).set_stage(stage, model.layouts[stage].placement)

    def build(self, seen, following):
        loss = self.model.loss(seen, following)
        loss.backward()
        return loss


flow.manual_seed(1)
model = GPT(2, 16, 4, 8, Layout.over(dp, tp, stages))
step = Step(model, flow.optim.AdamW(model.parameters(), lr=1e-3))
rng = np.random.default_rng(0)
for number in range(3):
    pair = model.pair(rng.integers(0, 256, (4, 8)), rng.integers(0, 256, (4, 8)))
    before = _C.comm_stats()["bytes_read"]
    loss = step(*pair)
    read, calls = _C.comm_stats()["bytes_read"] - before, _C.planner_calls()
    print(number, read, calls, loss.to_local().numpy().tobytes().hex() or "-")
"""


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    path = tmp_path_factory.mktemp("graph") / "gpt.py"
    path.write_text(GPT)
    return path


def graph_bytes(file):
    """What all ranks read in a call of the graph, by the file."""
    graph = re.search(r"^== graph .*?(?=^-- |\Z)", file.read_text(), re.M | re.S)[0]
    return sum(int(n) * int(each) for n, each in re.findall(r"^  x(\d+) .*, all (\d+) bytes", graph, re.M))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_graph_is_compiled_from_its_contract(gpt, tmp_path, layout):
    file = tmp_path / "gpt.contract"
    recorded = command("contract", "record", "-n", 4, "-o", file, gpt, *layout)
    assert recorded.returncode == 0, recorded.stderr
    lines = [line.split() for line in recorded.stdout.splitlines()]
    for number in "12":
        assert sum(int(read) for n, read, *_ in lines if n == number) == graph_bytes(file) > 0
    assert all(int(calls) > 0 for _, _, calls, _ in lines)
    replayed = command("contract", "check", "-n", 4, "-c", file, gpt, *layout)
    assert replayed.returncode == 0, replayed.stderr
    again = [line.split() for line in replayed.stdout.splitlines()]
    assert {calls for _, _, calls, _ in again} == {"0"}
    assert sorted((n, r, loss) for n, r, _, loss in again) == sorted((n, r, loss) for n, r, _, loss in lines)
