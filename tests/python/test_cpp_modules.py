"""Modules and functions of C++ (HOLON_PYTHON_MODULE, HOLON_PYTHON_FUNCTION) in Python."""

import copy
import inspect
import itertools
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from harness.ranks import ROOT
from holon.utils import cpp_extension
from holon.utils.data import DataLoader, TensorDataset

import holon as flow
from holon import nn

SOURCE = Path(__file__).parent / "library/modules.cpp"
EXAMPLE = ROOT / "examples/both"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return cpp_extension.load("models", SOURCE, ["-O0"], build_directory=folder, is_python_module=True)


class Net(nn.Module):
    """The same in Python."""

    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(4, width), nn.Linear(width, 3)
        self.scale = nn.Parameter(flow.ones(3))

    def forward(self, x):
        return self.down(flow.relu(self.up(x))) * self.scale


def pair(models, width=8):
    """The module of C++, and Python's with the same values."""
    net, twin = models.Net(width), Net(width)
    twin.load_state_dict({n: t for n, t in net.state_dict().items() if n != "seen"})
    return net, twin


def addresses(models, net):
    return models.addresses(net), [t.data_ptr() for t in net.state_dict().values()]


def test_it_is_a_module(models):
    net = models.Net(8)
    assert isinstance(net, nn.Module) and isinstance(net, models.Net) and models.Net.__module__ == "models"
    assert models.Net.__doc__ == "Two layers." and models.train.__doc__ == "One pass."
    assert str(inspect.signature(models.Net)) == "(width, dropout=0.0)"
    assert str(inspect.signature(models.train)) == "(net, batches, lr=0.1)"
    assert [n for n, _ in net.named_parameters()] == [
        "scale",
        "up.weight",
        "up.bias",
        "down.weight",
        "down.bias",
    ]
    assert all(type(p) is nn.Parameter and p.requires_grad for p in net.parameters())
    assert [n for n, _ in net.named_buffers()] == ["seen", "scratch"]
    assert [n for n, _ in net.named_children()] == ["up", "down", "drop"]
    assert [*net.state_dict()] == ["scale", "seen", "up.weight", "up.bias", "down.weight", "down.bias"]
    assert repr(net).startswith("Net(\n  (up): CppModule()") and net.up.weight.shape == (8, 4)
    assert models.Net(width=2, dropout=0.5).up.weight.shape == (2, 4)


def test_both_sides_have_the_same_tensors(models):
    net = models.Net(8)
    cpp, python = addresses(models, net)
    assert sorted(cpp) == sorted(python)
    x = flow.randn(5, 4)
    with flow.no_grad():
        net.up.weight.copy_(flow.zeros(8, 4))
        net.down.bias[:] = 2
    assert models.call_net(net, x).tolist() == net(x).tolist()
    models.train(net, [(x, flow.zeros(5, 3))])
    assert net.down.bias.tolist() != [2, 2, 2]
    assert sorted(addresses(models, net)[0]) == sorted(cpp)


def test_state_is_saved_and_loaded(models, tmp_path):
    net, other = models.Net(8), models.Net(8)
    flow.save(net.state_dict(), tmp_path / "net.safetensors")
    before = addresses(models, other)[0]
    result = other.load_state_dict(flow.load(tmp_path / "net.safetensors"))
    x = flow.randn(2, 4)
    assert not result.missing_keys and net(x).tolist() == other(x).tolist()
    assert addresses(models, other)[0] == before
    with pytest.raises(RuntimeError, match="missing: up.bias"):
        other.load_state_dict({n: t for n, t in net.state_dict().items() if n != "up.bias"})


def test_a_call_is_differentiated(models):
    net, twin = pair(models)
    x = flow.randn(5, 4, requires_grad=True)
    y = flow.tensor(x.numpy(), requires_grad=True)
    net(x).sum().backward()
    twin(y).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), y.grad.numpy())
    for name, p in twin.named_parameters():
        np.testing.assert_array_equal(net.get_parameter(name).grad.numpy(), p.grad.numpy())
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())
    net.requires_grad_(False)
    assert not net(flow.randn(1, 4)).requires_grad


def test_modes_are_one(models):
    net = models.Net(8, dropout=0.5)
    x = flow.ones(4, 4)
    assert net.training and models.in_training(net) and net.drop.training
    assert net.eval() is net and not models.in_training(net) and not net.drop.training
    assert models.call_net(net, x).tolist() == models.call_net(net, x).tolist()
    net.drop.train()  # that part only
    assert not net.training and not models.in_training(net)
    assert models.call_net(net, x).tolist() != models.call_net(net, x).tolist()
    models.set_eval(net)
    assert not net.drop.training


def test_it_is_converted_in_place(models):
    net = models.Net(8)
    parameters = list(net.parameters())
    assert net.double() is net and net(flow.ones(1, 4, dtype=flow.float64)).dtype == flow.float64
    assert all(a is b for a, b in zip(parameters, net.parameters())) and net.to("cpu") is net


def test_global_parameters(models):
    def run(rank):
        flow.manual_seed(3)
        place, split, whole = flow.placement("cpu", [0, 1]), flow.sbp.split(0), flow.sbp.broadcast
        net, twin = pair(models)
        net.to_global(place, whole)
        net.to_global(place, {"up.*": split, "*": whole})
        x = flow.randn(6, 4)
        y = net(x.to_global(place, whole))
        made = models.Global(place, split)
        listed = models.Global(place, [split])
        return (
            np.abs(y.detach().numpy() - twin(x).detach().numpy()).max(),
            net.up.weight.to_local().shape[0],
            str(made.layer.weight.sbp) == str(listed.layer.weight.sbp) == str((split,)),
        )

    assert flow.run_ranks(2, run) == [(pytest.approx(0, abs=1e-5), 4, True)] * 2


def test_inside_other_modules_and_optimizers(models):
    net, twin = pair(models)
    both, reference = nn.Sequential(nn.Linear(4, 4), net), nn.Sequential(nn.Linear(4, 4), twin)
    reference[0].load_state_dict(both[0].state_dict())
    assert "1.up.weight" in both.state_dict() and len(list(both.parameters())) == 7
    x, y = flow.randn(8, 4), flow.randn(8, 3)
    losses = []
    for model in (both, reference):
        adam = flow.optim.AdamW(model.parameters(), lr=0.01)
        losses.append([])
        for _ in range(5):
            loss = nn.MSELoss()(model(x), y)
            adam.zero_grad()
            loss.backward()
            adam.step()
            losses[-1].append(loss.item())
    assert losses[0] == losses[1] and losses[0][-1] < losses[0][0]


def test_a_class_derived_in_python(models):
    class Mine(models.Net):
        def __init__(self):
            super().__init__(8)
            self.head = nn.Linear(3, 2)
            self.note = "text"

        def forward(self, x):
            return self.head(super().forward(x))

    mine = Mine()
    assert mine(flow.ones(1, 4)).shape == (1, 2) and "head.weight" in mine.state_dict()
    with pytest.raises(TypeError, match="neither pickled nor copied"):
        pickle.dumps(mine)


def test_hooks(models):
    net, seen = models.Net(8), []
    handle = net.register_forward_hook(lambda module, args, result: seen.append(module) or result * 2)
    x = flow.ones(1, 4)
    doubled = net(x)
    handle.remove()
    assert seen == [net] and doubled.tolist() == (net(x) * 2).tolist()
    for name in ("forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"):
        with pytest.raises(NotImplementedError, match="part of one that is defined in C"):
            getattr(net.up, f"register_{name}")(print)
    with pytest.raises(NotImplementedError, match="only C.. knows how to call it"):
        net.up(x)


class Step(nn.Graph):
    def __init__(self, net, lr=0.1):
        super().__init__()
        self.net = net
        self.add_optimizer(flow.optim.SGD(net.parameters(), lr=lr))

    def build(self, x, y):
        loss = nn.MSELoss()(self.net(x), y)
        loss.backward()
        return loss


def test_in_a_graph(models):
    net, twin = pair(models)
    x, y = flow.randn(8, 4), flow.randn(8, 3)
    graph, reference = Step(net), Step(twin)
    for _ in range(4):
        assert graph(x, y).item() == pytest.approx(reference(x, y).item(), rel=1e-6)
    assert "net.up" in graph.captured()  # C++'s calls are scopes
    # A mode that C++ sets is seen, and a module that it replaces.
    models.set_eval(net)
    graph(x, y)
    assert graph._core.n_signatures == 2
    with pytest.raises(ValueError, match=r"\(in net.up, while Step was captured\)"):
        graph(flow.ones(8, 5), y)


def test_a_graph_sees_what_cpp_replaces(models):
    class Apply(nn.Graph):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def build(self, x):
            return self.net(x)

    net = models.Net(8)
    graph, x = Apply(net), flow.ones(1, 4)
    assert graph(x).tolist() == net(x).tolist()
    models.new_up(net)
    assert graph(x).tolist() == net(x).tolist()
    net.up.weight = nn.Parameter(flow.zeros(8, 4))
    assert graph(x).tolist() == net(x).tolist()


def test_stages_of_parts(models):
    def run(rank):
        flow.manual_seed(1)
        p0, p1 = flow.placement("cpu", [0]), flow.placement("cpu", [1])

        class Pipeline(nn.Graph):
            def __init__(self):
                super().__init__()
                self.net = models.Net(8)
                self.net.up.to_global(p0, flow.sbp.broadcast)
                for part in (self.net.down, self.net.drop):
                    part.to_global(p1, flow.sbp.broadcast)
                self.net.scale.data = self.net.scale.to_global(p1, flow.sbp.broadcast)
                self.net.up.to(nn.graph.GraphModule).set_stage(0, p0)
                self.net.drop.to(nn.graph.GraphModule).set_stage(1, p1)
                self.net.down.to(nn.graph.GraphModule).set_stage(1, p1)
                self.config.set_gradient_accumulation_steps(2)
                self.add_optimizer(flow.optim.SGD(self.net.parameters(), lr=0.1))

            def build(self, x, y):
                loss = nn.MSELoss()(self.net(x), y.to_global(p1, flow.sbp.broadcast))
                loss.backward()
                return loss

        graph = Pipeline()
        x = flow.randn(8, 4).to_global(p0, flow.sbp.broadcast)
        y = flow.randn(8, 3).to_global(p0, flow.sbp.broadcast)
        losses = [graph(x, y).mean().item() for _ in range(5)]
        return losses[-1] < losses[0]

    assert flow.run_ranks(2, run) == [True, True]


def test_what_cpp_adds_is_seen(models):
    stack = models.Stack()
    assert list(stack.parameters()) == []
    models.grow(stack, 4)
    first = stack.get_parameter("layers.0.weight")
    models.grow(stack, 4)
    assert [*stack.state_dict()] == [f"layers.{i}.{n}" for i in (0, 1) for n in ("weight", "bias")]
    assert stack.get_parameter("layers.0.weight") is first and stack(flow.ones(1, 4)).shape == (1, 4)
    models.tie(stack)
    assert stack.get_parameter("layers.1.weight") is first and len(list(stack.parameters())) == 3
    assert len(stack.state_dict()) == 4
    made, (other, two) = models.make(5), models.make_two(6)
    assert isinstance(made, models.Net) and made(flow.ones(1, 4)).shape == (1, 3)
    assert type(other) is models.Net and other.up.weight.shape == (6, 4) and two == 2


def test_replacing(models):
    net, x = models.Net(8), flow.ones(2, 4)
    weight = nn.Parameter(flow.zeros(8, 4))
    net.up.weight = weight
    net.scale = nn.Parameter(flow.full((3,), 2.0), requires_grad=False)
    net.seen = flow.ones(1)
    assert net.up.weight is weight and not net.scale.requires_grad
    expected = 2 * nn.functional.linear(flow.relu(net.up.bias), net.down.weight, net.down.bias)
    assert models.call_net(net, x).tolist() == net(x).tolist() == [expected.tolist()] * 2
    assert sorted(models.addresses(net)) == sorted(t.data_ptr() for t in net.state_dict().values())
    for change, says in (
        (lambda: setattr(net, "up", nn.Linear(4, 8)), "must be a module that is defined in C"),
        (lambda: setattr(net, "scale", flow.ones(3)), "must be a Parameter"),
        (lambda: setattr(net, "seen", 3), "must be a tensor"),
        (lambda: net.add_module("up", nn.Linear(4, 8)), "must be a module that is defined in C"),
        (lambda: setattr(net, "up", models.Net(8)), "cannot be assigned to"),
    ):
        with pytest.raises(TypeError, match=says):
            change()
    with pytest.raises(AttributeError, match="'up' cannot be deleted"):
        del net.up
    with pytest.raises(KeyError, match="has 'seen' from C"):
        net.register_buffer("seen", flow.ones(1))
    models.new_up(net)
    assert net.up.weight is not weight and models.call_net(net, x).tolist() == net(x).tolist()


def test_it_is_not_copied(models):
    net = models.Net(8)
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="defined in C.. and can be neither pickled nor copied: make another one"):
            copied(net)


def test_arguments_and_results(models):
    mixed = models.Mixed()
    x, more = flow.ones(2), [flow.ones(1), flow.ones(3)]
    y, doubled = mixed(x, 3, flow.tensor([0.0, 1.0]), more)
    assert y.tolist() == [0, 3] and [t.tolist() for t in doubled] == [[2], [2, 2, 2]]
    assert mixed(x)[0].tolist() == [1, 1] and mixed(x, more=more)[1][1].shape == (3,)
    assert models.echo(True, 2, 3, "text", flow.float64, None, ["a", "b"]) == (
        (True, 2, 3.0, "text", flow.float64, None, ["a", "b"])
    )
    assert models.echo(False, np.int64(2), np.float32(0.5), "", flow.int64, 7, ())[1:3] == (2, 0.5)
    assert models.positional(5, 3) == 2
    for call, says in (
        (lambda: models.positional(5, b=3), "arg0"),
        (lambda: models.Net(), r"Net: missing a required argument: 'width'; its arguments are \(width, dropout=0.0\)"),
        (lambda: models.Net("wide"), "Net: width must be an int, got str"),
        (lambda: models.Net(2.5), "Net: width must be an int, got float"),
        (lambda: models.Net(8)(3), "Net: x must be a Tensor, got int"),
        (lambda: models.Net(8)(), "missing a required argument: 'x'"),
        (
            lambda: models.echo(True, 2**40, dtype=flow.int8, list=[]),
            "n must be an int that fits its C.. type, got int",
        ),
        (lambda: models.echo(1, dtype=flow.int8, list=[]), "b must be a bool, got int"),
        (lambda: models.echo(True, dtype=flow.int8, list=["a", 1]), "list must be a str, got int"),
        (lambda: models.echo(True, dtype={}, list=[]), "echo: C.. does not take dict"),
        (lambda: models.train(nn.Linear(1, 1), []), "train: C.. does not take Linear"),
        (lambda: models.train(models.Stack(), []), "train: net must be a .*Net, got module"),
        (lambda: models.train(models.Net(1), 3), "train: batches must be an iterable of batches, got int"),
    ):
        with pytest.raises(TypeError, match=says):
            call()


@pytest.mark.parametrize(
    "kind, error, text",
    [
        ("value", ValueError, "a value"),
        ("type", TypeError, "a type"),
        ("index", IndexError, "an index"),
        ("standard", IndexError, "a standard one"),
        ("", RuntimeError, "at run time"),
    ],
)
def test_errors(models, kind, error, text):
    with pytest.raises(error, match=text):
        models.fail_as(kind)


def test_errors_of_ops_are_what_they_are(models):
    with pytest.raises(ValueError, match="linear"):
        models.Net(8)(flow.ones(2, 5))


def test_cpp_loops_over_batches_of_python(models):
    x, y = flow.arange(12).float().reshape(6, 2), flow.arange(6).float()
    loader = DataLoader(TensorDataset(x, y), batch_size=4)
    expected = [[28.0, 6.0], [38.0, 9.0]]
    assert models.sums(loader) == expected and models.sums(loader, times=2) == expected * 2
    assert models.sums([(x[:4], y[:4]), [x[4:], y[4:]]]) == expected
    assert models.sums([x]) == models.sums((x,)) == models.sums(iter([x])) == [[66.0]]
    generated = ((x, y) for _ in range(2))
    assert models.sums(generated, times=2) == [[66.0, 15.0]] * 2  # its second iteration is empty
    net = models.Net(8)
    batches = DataLoader(TensorDataset(flow.randn(64, 4), flow.zeros(64, 3)), batch_size=16, shuffle=True)
    losses = [models.train(net, batches) for _ in range(10)]
    assert losses[-1] < losses[0]


def test_exceptions_of_the_iterable_come_through(models):
    class Mine(Exception):
        pass

    mine = Mine("in the loader")

    def batches():
        yield flow.ones(1)
        raise mine

    with pytest.raises(Mine) as raised:
        models.count_until_error(batches())
    assert raised.value is mine and "batches" in [f.name for f in raised.traceback]

    class Broken:
        def __iter__(self):
            raise mine

    with pytest.raises(Mine):
        models.count_until_error(Broken())
    for wrong, says in (
        (iter([flow.ones(1), 3]), "batch 1 is int 3; a batch for C"),
        (iter([(flow.ones(1), np.ones(1))]), "item 1 of batch 0 is numpy.ndarray"),
        ([(flow.ones(1), "text")], "must be a Tensor, got str"),
    ):
        with pytest.raises(TypeError, match=says):
            models.count_until_error(wrong)


def test_ctrl_c_ends_a_loop(models):
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        models.count_until_error(itertools.repeat(flow.ones(1)))
    timer.join()


def test_a_function_leaves_the_lock_to_others(models):
    count, done = 0, threading.Event()

    def run():
        nonlocal count
        while not done.is_set():
            count += 1
            time.sleep(0.001)

    thread = threading.Thread(target=run)
    thread.start()
    before = count
    models.sleep_for(0.3)
    done.set()
    thread.join()
    assert count > before + 5


def test_an_iterable_may_use_threads(models):
    """The batches are made by a thread that needs the lock meanwhile."""

    def batches():
        for i in range(3):
            made = []
            thread = threading.Thread(target=lambda: made.append(flow.full((2,), float(i))))
            thread.start()
            thread.join()
            yield made[0]

    assert models.sums(batches()) == [[0.0], [2.0], [4.0]]


def test_every_rank_loads_it_by_itself(models):
    def run(rank):
        flow.manual_seed(rank)
        net = models.Net(8)
        return models.train(net, [(flow.randn(4, 4), flow.zeros(4, 3))] * 3) > 0

    assert flow.run_ranks(2, run) == [True, True]


HEAD = "#include <holon/exports/python.h>\nusing namespace holon;\nint64_t f(int64_t a) { return a; }\n"


@pytest.mark.parametrize(
    "text, says",
    [
        ('HOLON_PYTHON_FUNCTION(f).arguments({"a", "b"});', r"f: .arguments\(\) has 2 names for 1 parameters"),
        ("HOLON_PYTHON_FUNCTION(f);\nHOLON_PYTHON_FUNCTION(f);", "exports f twice"),
        ('static int v; static auto e = exports::export_function("f", &f, &v, 0);', "compiled against version 0"),
        ("struct S {}; void g(S) {} HOLON_PYTHON_FUNCTION(g);", "does not compile.*specialize holon::exports::Conver"),
        (
            "struct M : nn::Layer<M> { template <class T> T forward(T x) const { return x; } };\n"
            "HOLON_PYTHON_MODULE(M);",
            "does not compile.*a module for Python has one forward",
        ),
    ],
)
def test_a_wrong_library_is_refused(tmp_path, text, says):
    source = tmp_path / "wrong.cpp"
    source.write_text(HEAD + text)
    with pytest.raises(RuntimeError) as raised:
        cpp_extension.load("wrong", source, ["-O0"], build_directory=tmp_path, is_python_module=True)
    assert re.search(says, str(raised.value), re.S), raised.value


def test_the_example():
    library = ROOT / "build/dev/examples/libmodels.so"
    if not library.exists():
        pytest.skip("the examples are not built: ./dev build")
    done = subprocess.run(
        [sys.executable, EXAMPLE / "train.py", "--epochs", "15", "--library", library],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"(100|9\d)\.\d% of 300 new points are right", done.stdout), done.stdout
