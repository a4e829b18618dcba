"""The command ``holon contract`` and its like, and what they are tried on: a GPT on four ranks."""

import re
import subprocess
import sys

from harness.ranks import ROOT, environment

FIXED = {"HOLON_MACHINE_COSTS": "fixed"}

# Data-parallel ranks, tensor-parallel ranks, stages.
LAYOUTS = [(4, 1, 1), (1, 4, 1), (2, 2, 1), (2, 1, 2)]


def command(*arguments, cwd=None, **extra):
    """Runs the command holon; returns the finished process."""
    return subprocess.run(
        [sys.executable, "-m", "holon", *map(str, arguments)],
        env=environment(**FIXED, **extra),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
    )


def bytes_of(file, section):
    """What all ranks read in a section of a contract: a step, or a call of a graph."""
    text = re.search(rf"^== {section} .*?(?=^-- |^== |\Z)", file.read_text(), re.M | re.S)[0]
    return sum(int(n) * int(each) for n, each in re.findall(r"^  x(\d+) .*, all (\d+) bytes", text, re.M))


def recorded_and_replayed(program, file, layout):
    """What each rank prints of each step, in words, when a contract is recorded and when it is kept."""
    outputs = []
    for verb, option in ("record", "-o"), ("check", "-c"):
        run = command("contract", verb, "-n", 4, option, file, program, *layout)
        assert run.returncode == 0, run.stderr
        outputs.append([line.split() for line in run.stdout.splitlines()])
    return outputs


# Prints of each step its number, the bytes that the rank has read, how often it has asked the planner so far, and the
# bits of the loss.
EAGER_GPT = f"""
import sys

sys.path.insert(0, {str(ROOT / "examples/gpt")!r})
import numpy as np

import holon as flow
from holon import _C
from model import GPT, Layout

dp, tp, stages = map(int, sys.argv[1:4])
flow.manual_seed(1)
model = GPT(2, 16, 4, 8, Layout.over(dp, tp, stages))
optimizer = flow.optim.AdamW(model.parameters(), lr=1e-3)
rng = np.random.default_rng(0)
for step in range(4):
    seen, following = rng.integers(0, 256, (4, 8)), rng.integers(0, 256, (4, 8))
    before = _C.comm_stats()["bytes_read"]
    loss = model.loss(*model.pair(seen, following))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    read, calls = _C.comm_stats()["bytes_read"] - before, _C.planner_calls()
    print(step, read, calls, loss.to_local().numpy().tobytes().hex() or "-")
"""

GRAPH_GPT = f"""
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
