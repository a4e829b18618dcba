"""What nn.Graph and jit refuse: each message names the place in the user's program and the way out."""

import copy
import re

import numpy as np
import pytest

import holon
from holon import amp, nn, optim


def graph_of(function, module=None):
    class Refused(nn.Graph):
        def __init__(self):
            super().__init__()
            if module is not None:
                self.model = module

        def build(self, x):
            return function(self, x) if module is not None else function(x)

    return Refused()


X = holon.arange(12, dtype=holon.float32).reshape(3, 4)

VALUE = {
    "float": lambda x: float(x.sum()),
    "int": lambda x: int(x.sum()),
    "bool": lambda x: bool(x.sum()),
    "item": lambda x: x.sum().item(),
    "if": lambda x: x if x.sum() > 0 else -x,
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "asarray": np.asarray,
    "format": lambda x: f"{x.sum():.2f}",
    "data_ptr": lambda x: x.data_ptr(),
    "dlpack": np.from_dlpack,
    "in": lambda x: 3.0 in x,
    "index": lambda x: [1, 2][x.sum().long()],
    "range": lambda x: range(x.sum().long()),
    "mask": lambda x: x[x > 0],
    "nonzero": holon.nonzero,
    "unique": holon.unique,
    "full_value": lambda x: x.full_value(),
    "tensor": holon.tensor,
}


@pytest.mark.parametrize("use", VALUE.values(), ids=VALUE)
def test_a_value_is_not_there_while_a_graph_is_captured(use):
    line = use.__code__.co_firstlineno if hasattr(use, "__code__") else None
    with pytest.raises(
        RuntimeError, match=r"part of a graph that is being captured and has no value yet.*while Refused was captured"
    ) as caught:
        graph_of(lambda x: use(x * 2) and x)(X)
    assert "Use ops on tensors instead" in str(caught.value)
    if line is not None and not isinstance(use, type(np.asarray)):
        assert f"{__file__}:{line}" in str(caught.value)
    # Nothing is left behind: the rank works eagerly again.
    assert (X * 2).sum().item() == 132


def test_values_of_parameters_and_buffers_are_not_constants():
    class Scaled(nn.Module):
        def __init__(self, what):
            super().__init__()
            self.what = what
            self.scale = nn.Parameter(holon.ones(1))
            self.register_buffer("count", holon.ones(1))

        def forward(self, x):
            return x * getattr(self, self.what).item()

    for what in ("scale", "count"):
        with pytest.raises(
            RuntimeError, match="is a parameter or buffer of a graph that is being captured.* in model, while Refused"
        ):
            graph_of(lambda self, x: self.model(x), Scaled(what))(X)
    # A constant of the program's own is one.
    two = holon.tensor(2.0)
    assert graph_of(lambda x: x * two.item())(X).sum().item() == 132


def test_a_symbolic_tensor_has_a_text():
    texts = []
    p = holon.placement("cpu", [0])
    graph_of(lambda x: texts.append(f"{x} {x!r} {(x * 2).to_global(p, [holon.sbp.broadcast])}") or x)(X)
    assert (
        "shape=[3, 4], of a captured graph, dtype=holon.float32" in texts[0]
        and "sbp=(holon.sbp.broadcast,)" in texts[0]
    )
    holon.set_printoptions(gather=True)
    try:
        graph_of(lambda x: texts.append(str(x.to_global(p, [holon.sbp.broadcast]))) or x)(X)
    finally:
        holon.set_printoptions(gather=False)


def test_the_module_and_the_line_are_named():
    class Inner(nn.Module):
        def forward(self, x):
            return x @ holon.ones(5, 5)  # the line

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Identity(), Inner())

        def forward(self, x):
            return self.layers(x)

    line = Inner.forward.__code__.co_firstlineno + 1
    with pytest.raises(
        Exception, match=re.escape(f"({__file__}:{line}, in model.layers.1, while Refused was captured)")
    ) as caught:
        graph_of(lambda self, x: self.model(x), Outer())(X)
    assert str(caught.value).count("was captured") == 1
    with pytest.raises(type(caught.value)):
        X @ holon.ones(5, 5)


def test_a_tensor_that_leaks_is_of_no_use():
    kept = []
    graph_of(lambda x: kept.append(x * 2) or x)(X)
    leaked = kept[0]
    assert "of a captured graph" in repr(leaked)
    for use in (
        lambda: leaked + 1,
        lambda: leaked.numpy(),
        lambda: leaked.add_(1),
        lambda: X.copy_(leaked),
        lambda: leaked.tolist(),
        lambda: graph_of(lambda x: x)(leaked),
        lambda: copy.deepcopy(leaked),
    ):
        with pytest.raises(
            RuntimeError, match="was created in a graph's build.* has no value outside of it. Return it from build"
        ):
            use()
    with pytest.raises(RuntimeError, match="was created inside another graph's build.* Return it from that build"):
        graph_of(lambda x: x + leaked)(X)
    assert X.sum().item() == 66


def test_a_graph_inside_of_a_graph():
    inner = graph_of(lambda x: x + 1)
    for prepared in (False, True):
        if prepared:
            inner(X)
        for argument in (lambda x: x, lambda x: X):
            with pytest.raises(RuntimeError, match="called inside another one's build.* Call the module itself"):
                graph_of(lambda x, argument=argument: inner(argument(x)))(X)


def test_what_cannot_be_done_in_build():
    p = nn.Parameter(holon.ones(4))

    def backward(x):
        (x * p).sum().backward()
        return x

    cases = [
        (lambda x: amp.GradScaler().unscale_(optim.SGD([p], lr=1.0)), "set_grad_scaler"),
        (lambda x: optim.SGD([p], lr=1.0).step() or x, "add_optimizer"),
        (lambda x: setattr(p, "data", x[0]), "copy_"),
        (lambda x: setattr(p, "grad", x[0]), "backward"),
        (lambda x: holon.rand(4, generator=holon.Generator()), "would draw the same numbers in each call"),
    ]
    for use, way_out in cases:
        with pytest.raises(RuntimeError, match=way_out):
            graph_of(lambda x, use=use: use(backward(x)) or x)(X)
    assert p.grad is None and p.tolist() == [1] * 4

    def cleared(x):
        optim.SGD([p], lr=1.0).zero_grad()
        return backward(x)

    graph_of(cleared)(X)
    assert p.grad is None


def test_construction():
    class Early(nn.Graph):
        def __init__(self):
            self.model = nn.Linear(2, 2)

    class EarlyStage(nn.Graph):
        def __init__(self):
            nn.Linear(2, 2).to(nn.graph.GraphModule).set_stage(0)

    class Never(nn.Graph):
        def __init__(self):
            pass

    for cls in (Early, EarlyStage):
        with pytest.raises((AttributeError, RuntimeError), match=r"call super\(\).__init__\(\) first"):
            cls()
    with pytest.raises(AttributeError, match=r"Call super\(\).__init__\(\) first"):
        Never()(X)
    with pytest.raises(NotImplementedError, match="has no build: define it"):
        type("Empty", (nn.Graph,), {})()(X)
    with pytest.raises(AttributeError, match="G has no attribute 'modle'"):
        _ = type("G", (nn.Graph,), {})().modle
    with pytest.raises(AttributeError, match="Did you mean enable_amp"):
        type("G", (nn.Graph,), {})().config.enable_amps(True)
    with pytest.raises(AttributeError, match="cannot be set"):
        type("G", (nn.Graph,), {})().config.amp = True


def test_optimizers():
    class Own(optim.SGD):
        def step(self, closure=None):
            pass

    used, unused = nn.Linear(4, 1), nn.Linear(4, 1)

    def graph(*optimizers, **options):
        class G(nn.Graph):
            def __init__(self):
                super().__init__()
                self.model = used
                for o in optimizers:
                    self.add_optimizer(o, **options)

            def build(self, x):
                loss = self.model(x).sum()
                loss.backward()
                return loss

        return G()

    with pytest.raises(
        RuntimeError,
        match="no gradient for any of the 2 parameters of this optimizer's group.*parameters of the module that build",
    ):
        graph(optim.SGD(unused.parameters(), lr=0.1))(X)
    with pytest.raises(NotImplementedError, match="Own has an update written in Python"):
        graph(Own(used.parameters(), lr=0.1))
    with pytest.raises(TypeError, match="takes an optimizer, got list"):
        graph(list(used.parameters()))
    o = optim.SGD(used.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="is added already"):
        graph(o, o)
    with pytest.raises(ValueError, match="is in two optimizers"):
        graph(o, optim.Adam(used.parameters()))(X)
    with pytest.raises(ValueError, match="StepLR belongs to another optimizer"):
        graph(o, lr_sch=optim.lr_scheduler.StepLR(optim.SGD(used.parameters(), lr=0.1), 1))
    g = graph(optim.SGD(used.parameters(), lr=0.1))
    g(X)
    with pytest.raises(RuntimeError, match="captured already. Add optimizers in the constructor"):
        g.add_optimizer(optim.SGD(unused.parameters(), lr=0.1))


def test_config():
    config = graph_of(lambda x: x).config
    for call in (
        lambda: config.set_gradient_accumulation_steps(0),
        lambda: config.enable_zero(True, stage=4),
        lambda: config.enable_amp(True, dtype=holon.float32),
        lambda: config.set_memory_budget(-1),
        lambda: config.pipeline(schedule="none"),
        lambda: config.pipeline(stages=2, placements=[1]),
    ):
        with pytest.raises(ValueError):
            call()
    graph = graph_of(lambda x: x * 2)
    graph.config.disable_passes(["no_such_pass"])
    with pytest.raises(ValueError, match='no pass "no_such_pass" to leave out. The passes are'):
        graph(X)


def test_stages_that_skip_a_number():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    graph = graph_of(lambda self, x: self.model(x), model)
    model[0].to(nn.graph.GraphModule).set_stage(0)
    model[1].to(nn.graph.GraphModule).set_stage(2)
    with pytest.raises(ValueError, match="Refused has no module in stage 1, but model.1 in stage 2"):
        graph(X)
    with pytest.raises(ValueError, match="int from 0 on"):
        model[0].to(nn.graph.GraphModule).set_stage(-1)


def test_jit():
    calls = []

    @holon.jit
    def f(x, scale, more=()):
        calls.append(1)
        return {"y": x * scale, "more": [m + 1 for m in more]}

    assert f(X, 2.0)["y"].sum().item() == 132 and f(X + 1, 2.0)["y"].sum().item() == 156 and len(calls) == 1
    assert f(X, 3.0, [X])["more"][0].sum().item() == 78 and len(calls) == 2
    assert f.__name__ == "f" and "mul" in f.graph.captured()
    with pytest.raises(RuntimeError, match=r"jit: a result of .*f requires grad.*no_grad\(\)"):
        f(X.clone().requires_grad_(), 2.0)
    with holon.no_grad():
        assert f(X.clone().requires_grad_(), 2.0)["y"].sum().item() == 132

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.drop = nn.Linear(4, 4), nn.Dropout(0.5)

        @holon.jit
        def encode(self, x):
            return self.drop(self.fc(x))

        def forward(self, x):
            return self.drop(self.fc(x))

    model = Model().eval()
    with holon.no_grad():
        fast = holon.jit(model)
        for run in (fast, model.encode):
            np.testing.assert_allclose(run(X).numpy(), model(X).numpy(), rtol=1e-6)
        model.train()
        for run in (fast, model.encode):
            assert (run(X) == 0).any().item()
        assert "fc" in fast.graph.plan()
    with pytest.raises(TypeError, match="takes a function"):
        holon.jit(3)
    amp = holon.jit(lambda x: x @ x.T, enable_amp=True)
    assert amp(X).dtype == holon.bfloat16
