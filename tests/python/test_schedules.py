"""Schedules of pipelines: the library's, and those that a program registers."""

import threading
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from harness import ranks

from holon import nn, pipeline


def one_by_one(devices, micro_batches, training):
    lists = [[] for _ in range(max(devices) + 1)]
    for m in range(micro_batches):
        for stage, device in enumerate(devices):
            lists[device].append((stage, m, "F"))
        for stage, device in reversed(list(enumerate(devices))):
            if training:
                lists[device].append((stage, m, "B"))
    return lists


@pytest.fixture
def register():
    names = []

    def add(name, *args, **options):
        pipeline.register_schedule(name, *args, **options)
        names.append(name)

    yield add
    for name in names:
        pipeline.unregister_schedule(name)


def test_the_librarys_schedules_have_a_line_each():
    all_ = pipeline.schedules()
    assert {"gpipe", "1f1b", "interleaved", "zero_bubble", "zero_bubble_v", "dualpipe_v"} <= set(all_)
    assert all(all_.values())


def test_tables_and_formulas():
    table = pipeline.make_schedule("zero_bubble_v", [0, 1, 1, 0], 3)
    assert table.splits_backward and table.training and table.micro_batches == 3
    assert table.tasks[0][:4] == [(0, 0, "F"), (0, 1, "F"), (0, 2, "F"), (3, 0, "F")]
    assert table.bubble() == pytest.approx(pipeline.bubble("zero_bubble_v", 2, 3, 2))
    assert table.peak_in_flight() == [4, 4]
    assert str(table).startswith("0: F0@0 F1@0 F2@0 F0@3 B0@3 W0@3")
    assert "4 stages on 2 devices" in repr(table)
    ET.fromstring(table.svg(forward=2))
    assert not pipeline.make_schedule("zero_bubble_v", [0, 1, 1, 0], 3, training=False).splits_backward


def test_a_schedule_of_the_program(register):
    register("one_by_one", one_by_one, doc="for this test", bubble=lambda p, *rest: 1 - 1 / p)
    assert pipeline.schedules()["one_by_one"] == "for this test"
    table = pipeline.make_schedule("one_by_one", [0, 1], 2)
    assert str(table) == "0: F0 B0 F1 B1\n1: F0 B0 F1 B1\n"
    assert table.bubble() == pytest.approx(pipeline.bubble("one_by_one", 2, 2))
    assert pipeline.make_schedule("one_by_one", [0, 1], 2, training=False).tasks == [
        [(0, 0, "F"), (0, 1, "F")],
        [(1, 0, "F"), (1, 1, "F")],
    ]


def test_names_that_are_taken_or_missing(register):
    register("own", one_by_one)
    for name in ("own", "gpipe", "zb-h1"):
        with pytest.raises(ValueError, match=f"there is a schedule '{name}' already. Choose another name"):
            pipeline.register_schedule(name, one_by_one)
    with pytest.raises(ValueError, match="lets the library choose"):
        pipeline.register_schedule("auto", one_by_one)
    with pytest.raises(TypeError, match="cannot be called"):
        pipeline.register_schedule("none", 3)
    with pytest.raises(ValueError, match="there is no schedule 'none'. There are '1f1b'"):
        pipeline.unregister_schedule("none")
    with pytest.raises(ValueError, match="there is no formula for 'own'"):
        pipeline.bubble("own", 2, 2)
    graph = nn.Graph()
    for name in ("none", 3, None):
        with pytest.raises(ValueError, match=r"config.pipeline: there is no schedule .* 'own'.*register_schedule"):
            graph.config.pipeline(schedule=name)
    graph.config.pipeline(schedule="zb-h1")
    assert "zero_bubble" in repr(graph.config)


@pytest.mark.parametrize(
    ("lists", "says"),
    [
        (None, "what its function returns is None"),
        ([[], 3], "the list of device 1 is 3"),
        ([[(0, 0, "F")], [(1, 0)]], r"device 1: task 0 of its list is \(1, 0\)"),
        ([[(0, 0, "G")], []], r"device 0: task 0 of its list is \(0, 0, 'G'\)"),
        ([[(0.5, 0, "F")], []], "device 0: task 0"),
        ([[(0, 0, "F")], [(1, 0, "F")]], r"device 0 lacks stage 0 B\(0\)"),
        ([[(0, 0, "F"), (1, 0, "F")], []], r"device 0 has stage 1 F\(0\), and the stage is on device 1"),
        ([[(0, 0, "F"), (0, 0, "W")], []], "splits_backward is false"),
        ([[(0, 0, "F"), (0, 0, "B")], [(1, 0, "B"), (1, 0, "F")]], "the devices would wait for each other"),
        ([[]], "1 lists for 2 devices"),
    ],
)
def test_lists_that_are_no_schedule(register, lists, says):
    register("own", lambda *of: lists)
    with pytest.raises(ValueError, match=f"schedule own: .*{says}"):
        pipeline.make_schedule("own", [0, 1], 1)


def test_an_exception_of_the_function_is_the_calls(register):
    def fails(devices, micro_batches, training):
        raise KeyError("no table")

    register("own", fails)
    with pytest.raises(KeyError, match="no table"):
        pipeline.make_schedule("own", [0, 1], 1)


def test_threads_register_at_once():
    def work(n):
        for _ in range(50):
            pipeline.register_schedule(f"thread {n}", one_by_one)
            assert pipeline.make_schedule(f"thread {n}", [0, 1], 1).name == f"thread {n}"
            pipeline.unregister_schedule(f"thread {n}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not [name for name in pipeline.schedules() if name.startswith("thread")]


PROGRAM = """
import sys
import numpy as np
import holon
from holon import nn, optim

schedule, where, n = sys.argv[1], [int(rank) for rank in sys.argv[2]], int(sys.argv[3])

def one_by_one(devices, micro_batches, training):
    lists = [[] for _ in range(max(devices) + 1)]
    for m in range(micro_batches):
        for stage, device in enumerate(devices):
            lists[device].append((stage, m, "F"))
        for stage, device in reversed(list(enumerate(devices))):
            lists[device] += [(stage, m, "B"), (stage, m, "W")]
    return lists

holon.pipeline.register_schedule("own", one_by_one, splits_backward=True)
alone = len(where) == 0
stages = 4 if alone else len(where)
placements = [None if alone else holon.placement("cpu", [rank]) for rank in (where or range(stages))]
on = lambda x, p: x if alone else x.to_global(p, holon.sbp.broadcast)
holon.manual_seed(0)
layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(stages)])
x, y = holon.randn(2 * n, 6), holon.randn(2 * n, 6)
for layer, p in zip(layers, placements):
    if not alone:
        layer.to_global(p, holon.sbp.broadcast)

class Train(nn.Graph):
    def __init__(self):
        super().__init__()
        self.layers = layers
        for stage, layer in enumerate(layers):
            layer.to(nn.graph.GraphModule).set_stage(stage, placements[stage])
        self.add_optimizer(optim.SGD(layers.parameters(), lr=0.5, momentum=0.9))
        self.config.set_gradient_accumulation_steps(n)
        self.config.verify()
        self.config.pipeline(schedule=schedule)

    def build(self, x, y):
        for layer in self.layers:
            x = layer(x).tanh()
        loss = nn.functional.mse_loss(x, y)
        loss.backward()
        return loss

train = Train()
data = on(x, placements[0]), on(y, placements[-1])
for _ in range(4):
    train(*data)
every = holon.placement("cpu", list(range(holon.env.get_world_size())))
values = [p.detach() if alone else p.detach().to_global(every, holon.sbp.broadcast).to_local()
          for p in layers.parameters()]
if alone or holon.env.get_rank() == 0:
    np.savez("values.npz", *[v.numpy() for v in values])
    print(train.schedule(), end="")
"""


@pytest.mark.parametrize(
    ("schedule", "where"),
    [("zero_bubble_v", "0110"), ("dualpipe_v", "0110"), ("dualpipe_v", "0101"), ("own", "0110")],
)
def test_a_graph_trains_as_on_one_rank(tmp_path, schedule, where):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    found = {}
    for ranks_of_stages in ("", where):
        n = 1 if not ranks_of_stages else 2
        done = ranks.launch(program, n, cwd=tmp_path, arguments=(schedule, ranks_of_stages, 5))
        assert done.returncode == 0, done.stderr
        with np.load(tmp_path / "values.npz") as values:
            found[ranks_of_stages] = [values[name] for name in values.files]
    assert "W4" in done.stdout
    for want, got in zip(found[""], found[where], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


DIFFERENT = """
import holon
from holon import nn, optim

rank = holon.env.get_rank()
holon.pipeline.register_schedule(
    "own",
    lambda devices, n, training: [
        [(0, m, phase) for m in range(n) for phase in "FB"] if rank == 0
        else [(0, m, phase) for phase in "FB" for m in range(n)],
        [(1, m, phase) for m in range(n) for phase in "FB"],
    ],
)
P = [holon.placement("cpu", [0]), holon.placement("cpu", [1])]

class Train(nn.Graph):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4, placement=p, sbp=holon.sbp.broadcast) for p in P])
        for stage, layer in enumerate(self.layers):
            layer.to(nn.graph.GraphModule).set_stage(stage, P[stage])
        self.add_optimizer(optim.SGD(self.layers.parameters(), lr=0.5))
        self.config.set_gradient_accumulation_steps(2)
        self.config.pipeline(schedule="own")

    def build(self, x):
        for layer in self.layers:
            x = layer(x)
        loss = x.sum()
        loss.backward()
        return loss

try:
    Train()(holon.randn(4, 4, placement=P[0], sbp=holon.sbp.broadcast))
except RuntimeError as error:
    print(f"rank {rank} raised: {error}")
"""


def test_ranks_whose_tables_differ_raise(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(DIFFERENT)
    done = ranks.launch(program, 2, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        assert f"rank {rank} raised: the ranks order the tasks of a graph differently" in done.stdout
    assert "stage 0 B(0)" in done.stdout and "stage 0 F(1)" in done.stdout
