"""Pictures and tables of a compiled graph, and stages cut by cost."""

import itertools
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from harness import ranks

import holon
from holon import nn, optim


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(holon.tanh(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, blocks=6, width=8):
        super().__init__()
        self.blocks, self.head = nn.ModuleList([Block(width) for _ in range(blocks)]), nn.Linear(width, 3)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Train(nn.Graph):
    def __init__(self, net, micro_batches=1):
        super().__init__()
        self.net = net
        self.add_optimizer(optim.Adam(net.parameters(), lr=0.01))
        self.config.set_gradient_accumulation_steps(micro_batches)

    def build(self, x, y):
        loss = nn.functional.cross_entropy(self.net(x), y)
        loss.backward()
        return loss


def batch(rows=8, width=8):
    return holon.ones(rows, width), holon.zeros(rows, dtype=holon.int64)


def trained(micro_batches=1):
    graph = Train(Net(), micro_batches)
    graph(*batch())
    return graph


def texts(svg):
    return [e.text or "" for e in ET.fromstring(svg).iter() if e.tag.endswith("text")]


def test_plan_folds_repeated_blocks(tmp_path):
    graph = trained()
    path = graph.plot(tmp_path / "plan.svg")
    svg = (tmp_path / "plan.svg").read_text()
    assert path == str(tmp_path / "plan.svg") and svg == graph.plot()
    shown = texts(svg)
    assert "stage 0" in shown
    assert any("\u00d7" in text for text in shown), "six blocks that are alike are not folded"
    whole = texts(graph.plot(fold=False, most_items=1000))
    assert sum(text.startswith("linear") for text in whole) > sum(text.startswith("linear") for text in shown)
    assert any("up" in text for text in whole)
    assert len(texts(graph.plot(fold=False, most_items=1))) < len(whole)


def test_arrows_between_stages_cross_no_item():
    graph = Train(Net())
    graph.config.pipeline(stages=3)
    graph(*batch())
    svg = ET.fromstring(graph.plot())
    items = [
        tuple(float(e.get(k)) for k in ("x", "y", "width", "height"))
        for e in svg.iter()
        if e.tag.endswith("rect") and e.get("rx") == "3"
    ]
    arrows = [e.get("d") for e in svg.iter() if e.tag.endswith("path") and e.get("stroke-width") == "2.2"]
    assert len(items) > 10 and len(arrows) >= 4
    for arrow in arrows:
        x, y = (float(n) for n in re.match(r"M(\S+) ([\d.]+)", arrow).groups())
        lines = re.findall(r"([HV])([\d.]+)", arrow)
        assert "C" not in arrow and len(lines) == 5
        for direction, to in lines:
            end = (float(to), y) if direction == "H" else (x, float(to))
            low, high = (min(x, end[0]), min(y, end[1])), (max(x, end[0]), max(y, end[1]))
            for left, top, width, height in items:
                beside = high[0] <= left or low[0] >= left + width or high[1] <= top or low[1] >= top + height
                assert beside, f"{arrow} crosses the item at {left}, {top}"
            x, y = end


def test_memory_adds_up():
    graph = trained(micro_batches=2)
    table = graph.memory()
    assert "parameters" in table and "optimizer states" in table and "activations" in table and "gradients" in table
    n_bytes = sum(p.numel() * 4 for p in graph.net.parameters())
    rows = {line[2:28].strip(): line[28:].split() for line in table.splitlines()[2:]}
    unit = {"B": 1, "KiB": 1024, "MiB": 1 << 20}
    size = lambda words: float(words[0]) * unit[words[1]]
    assert size(rows["parameters"]) == pytest.approx(n_bytes, rel=0.02)
    assert size(rows["optimizer states"]) == pytest.approx(2 * n_bytes, rel=0.02)
    assert any(text.startswith("peak ") for text in texts(graph.plot_memory()))


def test_schedule_is_shown():
    graph = trained(micro_batches=2)
    assert graph.schedule() == "0: F0 B0 F1 B1\n"
    assert any(
        text.endswith("2 micro-batches, time 0, bubble 0.0 %") or "2 micro-batches" in text
        for text in texts(graph.plot_schedule())
    )


def test_errors():
    graph = Train(Net())
    for call in (graph.plot, graph.memory, graph.plot_schedule, graph.plot_memory):
        with pytest.raises(RuntimeError, match="not compiled yet"):
            call()
    graph(*batch())
    with pytest.raises(IndexError, match="signature 3 of 1"):
        graph.plot(signature=3)


def chain(widths):
    return nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(widths)))


def best_cut(costs, cut_costs, stages):
    """The cut whose most expensive stage costs least, by trying all."""

    def worst(cut):
        ends = [0, *cut, len(costs)]
        return max(
            sum(costs[a:b]) + (cut_costs[a - 1] if a else 0) + (cut_costs[b - 1] if b < len(costs) else 0)
            for a, b in itertools.pairwise(ends)
        )

    return min(worst(cut) for cut in itertools.combinations(range(1, len(costs)), stages - 1)), worst


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_cut_of_an_uneven_chain(stages):
    net = chain([16, 16, 256, 256, 16, 16, 512, 16, 16])
    graph = Train(net)
    graph.config.pipeline(stages=stages)
    graph.compile(holon.ones(64, 16), holon.zeros(64, dtype=holon.int64))
    found = graph._automatic_stages.chain
    assert found["blocks"] == [f"net.{i}" for i in range(8)]
    least, worst = best_cut(found["costs"], found["cut_costs"], stages)
    assert worst(found["first"][1:]) == pytest.approx(least)
    assert [found["costs"][2] > 10 * found["costs"][0], found["bytes"][1] == 64 * 256 * 4] == [True, True]


def test_more_stages_than_blocks():
    graph = Train(chain([8, 8, 8]))
    graph.config.pipeline(stages=3)
    with pytest.raises(
        ValueError, match="3 stages, but the graph's modules form a chain of 2 blocks \\(net.0, net.1\\)"
    ):
        graph(*batch())


def test_stages_of_local_tensors_train_alike():
    x, y = batch()
    losses = []
    for stages in (None, 2):
        holon.manual_seed(0)
        graph = Train(Net(), micro_batches=2)
        graph.config.pipeline(stages=stages)
        losses.append([graph(x, y).numpy() for _ in range(4)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


PROGRAM = """
import json
import numpy as np
import holon
from holon import nn, optim

class Block(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
    def forward(self, x):
        return x + self.down(holon.tanh(self.up(x)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(6, 16), nn.Linear(16, 3)
        self.blocks = nn.ModuleList([Block(16, n) for n in (16, 64, 16, 16, 32)])
    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

everywhere = holon.placement("cpu", ranks={ranks})
S, B = holon.sbp.split(0), holon.sbp.broadcast
layout = [S, B] if everywhere.ranks.ndim == 2 else S
whole = [B, B] if everywhere.ranks.ndim == 2 else B

def data(step):
    generator = np.random.default_rng(step)
    x, y = generator.standard_normal((48, 6)).astype("float32"), generator.integers(0, 3, 48)
    return holon.tensor(x, placement=everywhere, sbp=layout), holon.tensor(y, placement=everywhere, sbp=layout)

def model():
    holon.manual_seed(3)
    net = Net()
    return net.to_global(everywhere, whole)

eager = model()
optimizer = optim.Adam(eager.parameters(), lr=0.01)
want = []
for step in range(6):
    x, y = data(step)
    loss = nn.functional.cross_entropy(eager(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    want.append(loss.to_global(everywhere, whole).item())

class Train(nn.Graph):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.add_optimizer(optim.Adam(net.parameters(), lr=0.01))
        self.config.set_gradient_accumulation_steps(4)
        self.config.pipeline(stages={stages}, schedule="{schedule}")
    def build(self, x, y):
        loss = nn.functional.cross_entropy(self.net(x), y)
        loss.backward()
        return loss

net = model()
graph = Train(net)
got = []
for step in range(6):
    loss = graph(*data(step))
    got.append(float(loss.to_global(everywhere, whole).to_local().numpy().mean()))
np.testing.assert_allclose(got, want, rtol=2e-5)
for (name, a), (_, b) in zip(eager.named_parameters(), net.named_parameters()):
    b = b.to_global(everywhere, whole)
    np.testing.assert_allclose(a.to_local().numpy(), b.to_local().numpy(), rtol=1e-4, atol=1e-5, err_msg=name)
places = {{str(p.placement) for p in net.parameters()}}
assert len(places) == {stages}, places
graph.plot("plan.svg")
graph.plot_memory("memory.svg", all_ranks=True)
table = graph.memory(all_ranks=True)
if holon.env.get_rank() == 0:
    ranks = [line.split()[1] for line in table.splitlines() if line.startswith("rank")]
    print(json.dumps({{"ranks": ranks, "schedule": graph.schedule()}}))
"""


CONSTANT_GRADIENT = """
import holon
from holon import nn, optim
P, B = [holon.placement("cpu", [r]) for r in range(3)], holon.sbp.broadcast

class Train(nn.Graph):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4, placement=p, sbp=B) for p in P])
        for stage, layer in enumerate(self.layers):
            layer.to(nn.graph.GraphModule).set_stage(stage, P[stage])
        self.add_optimizer(optim.SGD(self.layers.parameters(), lr=0.1))
        self.config.set_gradient_accumulation_steps(3)

    def build(self, x):
        for layer in self.layers:
            x = layer(x)
        loss = x.sum()
        loss.backward()
        return loss

graph = Train()
graph(holon.randn(6, 4, placement=P[0], sbp=B))
if holon.env.get_rank() == 0:
    print(graph.schedule(), end="")
"""


def test_a_gradient_that_is_a_constant_stays_with_its_stage(tmp_path):
    """A bias in front of a sum has one: it must not make the last stage share a device with the first."""
    program = tmp_path / "program.py"
    program.write_text(CONSTANT_GRADIENT)
    done = ranks.launch(program, 3, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0: F0 F1 F2 B0 B1 B2\n1: F0 F1 B0 F2 B1 B2\n2: F0 B0 F1 B1 F2 B2\n"


@pytest.mark.parametrize(
    ("where", "n", "stages", "schedule"),
    [
        ("[0, 1]", 2, 2, "1f1b"),
        ("[0, 1, 2, 3]", 4, 2, "zero_bubble"),
        ("[[0, 1], [2, 3]]", 4, 2, "gpipe"),
        ("[0, 1, 2]", 3, 3, "1f1b"),
    ],
)
def test_automatic_pipeline_trains_as_eager(tmp_path, where, n, stages, schedule):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(ranks=where, stages=stages, schedule=schedule))
    done = ranks.launch(program, n, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = texts((tmp_path / "plan.svg").read_text())
    assert [text for text in shown if text.startswith("stage ")] == [f"stage {s}" for s in range(stages)]
    assert any(text.startswith("exchange") or "exchange" in text for text in shown), "no box between the stages"
    panels = [text for text in texts((tmp_path / "memory.svg").read_text()) if text.startswith("rank ")]
    assert panels == [f"rank {r}" for r in range(n)]
