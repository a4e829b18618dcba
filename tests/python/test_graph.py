"""nn.Graph against eager: the same numbers from one step to the next,
and the bookkeeping around signatures and optimizers."""

import gc
import re
import warnings

import numpy as np
import pytest

import holon
from holon import nn, optim

STEPS = 20


class Mlp(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(12, width), nn.Linear(width, width), nn.Linear(width, 4)

    def forward(self, x):
        return self.fc3(holon.relu(self.fc2(holon.relu(self.fc1(x)))))


class Noisy(nn.Module):
    """With running statistics and random numbers.
    (No bias before the norm: its gradient is rounding only, which Adam makes large.)"""

    def __init__(self):
        super().__init__()
        self.fc1, self.norm, self.drop, self.fc2 = (
            nn.Linear(12, 16, bias=False),
            nn.BatchNorm1d(16),
            nn.Dropout(0.3),
            nn.Linear(16, 4),
        )

    def forward(self, x):
        return self.fc2(self.drop(holon.relu(self.norm(self.fc1(x)))))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, bias=False, batch_first=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class SmallGpt(nn.Module):
    def __init__(self, words=40, width=16, length=8):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, 2) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, x):
        h = self.words(x) + self.places(holon.arange(x.shape[1]))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


class Train(nn.Graph):
    def __init__(self, model, optimizer, schedule=None, loss=nn.functional.mse_loss):
        super().__init__()
        self.model, self.loss = model, loss
        self.add_optimizer(optimizer, lr_sch=schedule)

    def build(self, x, y):
        loss = self.loss(self.model(x), y)
        loss.backward()
        return loss


def batches(n, rows=8, seed=0):
    rng = np.random.default_rng(seed)
    return [
        (
            holon.tensor(rng.normal(size=(rows, 12)).astype(np.float32)),
            holon.tensor(rng.normal(size=(rows, 4)).astype(np.float32)),
        )
        for _ in range(n)
    ]


def texts(n, seed=0):
    rng = np.random.default_rng(seed)
    return [(holon.tensor(rng.integers(0, 40, (4, 8))), holon.tensor(rng.integers(0, 40, (4, 8)))) for _ in range(n)]


def word_loss(logits, target):
    return nn.functional.cross_entropy(logits.reshape(-1, 40), target.reshape(-1))


def made(model, make_optimizer, seed=0):
    holon.manual_seed(seed)
    m = model()
    return m, make_optimizer(m.parameters())


def eager_step(model, optimizer, x, y, loss=nn.functional.mse_loss):
    optimizer.zero_grad()
    value = loss(model(x), y)
    value.backward()
    optimizer.step()
    return value


def assert_same_state(a, b, rtol=1e-5, atol=1e-6):
    for (name, p), q in zip(a.state_dict().items(), b.state_dict().values()):
        np.testing.assert_allclose(p.numpy(), q.numpy(), rtol=rtol, atol=atol, err_msg=name)


def sgd(params):
    return optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-3)


def adamw(params):
    return optim.AdamW(params, lr=3e-3)


@pytest.mark.parametrize("make_optimizer", [sgd, adamw], ids=["sgd", "adamw"])
@pytest.mark.parametrize(
    "model, data, loss",
    [(Mlp, batches, nn.functional.mse_loss), (Noisy, batches, nn.functional.mse_loss), (SmallGpt, texts, word_loss)],
    ids=["mlp", "noisy", "gpt"],
)
def test_training_equals_eager(model, data, loss, make_optimizer):
    (a, eager), (b, compiled) = made(model, make_optimizer), made(model, make_optimizer)
    schedules = [optim.lr_scheduler.CosineDecayLR(o, 15, alpha=0.1) for o in (eager, compiled)]
    graph = Train(b, compiled, schedules[1], loss)
    losses = []
    holon.manual_seed(5)
    for x, y in data(STEPS):
        losses.append(eager_step(a, eager, x, y, loss).item())
        schedules[0].step()
    holon.manual_seed(5)
    found = [graph(x, y).item() for x, y in data(STEPS)]
    np.testing.assert_allclose(found, losses, rtol=1e-5)
    assert_same_state(a, b)
    assert (
        compiled.param_groups[0]["lr"]
        == eager.param_groups[0]["lr"]
        < make_optimizer([nn.Parameter(holon.ones(1))]).param_groups[0]["lr"]
    )
    assert all(p.grad is None for p in b.parameters())
    assert graph.stats()["captured_nodes"] > 10


def test_eager_and_graph_steps_alternate():
    (a, eager), (b, mixed) = made(Noisy, adamw), made(Noisy, adamw)
    graph = Train(b, mixed)
    data = batches(12)
    holon.manual_seed(1)
    for x, y in data:
        eager_step(a, eager, x, y)
    holon.manual_seed(1)
    for i, (x, y) in enumerate(data):
        if i % 3 == 1:
            eager_step(b, mixed, x, y)
        else:
            mixed.zero_grad()
            graph(x, y)
    assert_same_state(a, b)
    want, found = eager.state_dict()["state"], mixed.state_dict()["state"]
    for i in want:
        assert found[i]["step"] == 12
        np.testing.assert_allclose(found[i]["exp_avg_sq"].numpy(), want[i]["exp_avg_sq"].numpy(), rtol=1e-4, atol=1e-9)


def test_another_signature_is_captured_and_shares_the_state():
    (a, eager), (b, compiled) = made(Mlp, adamw), made(Mlp, adamw)
    graph = Train(b, compiled)
    mixed = [batch for pair in zip(batches(4), batches(4, rows=5, seed=1)) for batch in pair]
    for x, y in mixed:
        np.testing.assert_allclose(graph(x, y).item(), eager_step(a, eager, x, y).item(), rtol=1e-5)
    assert graph._core.n_signatures == 2
    assert_same_state(a, b)
    assert compiled.state[b.fc1.weight]["step"] == 8
    text = repr(graph)
    assert "float32 [8, 12]" in text and "float32 [5, 12]" in text and "signature 1" in text


def test_state_dict_goes_on_where_it_was():
    data = batches(8)
    model, optimizer = made(Noisy, adamw)
    graph = Train(model, optimizer, optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5))
    holon.manual_seed(1)
    for x, y in data[:4]:
        graph(x, y)
    saved, random = graph.state_dict(), holon.get_rng_state()
    assert list(saved) == ["model", "optimizer_0", "lr_scheduler_0"]
    assert set(saved["model"]) == set(model.state_dict())
    saved = {
        "model": {k: v.clone() for k, v in saved["model"].items()},
        "optimizer_0": {
            **saved["optimizer_0"],
            "state": {
                i: {k: v.clone() if isinstance(v, holon.Tensor) else v for k, v in s.items()}
                for i, s in saved["optimizer_0"]["state"].items()
            },
        },
        "lr_scheduler_0": saved["lr_scheduler_0"],
    }
    rest = [graph(x, y).item() for x, y in data[4:]]
    other, fresh = made(Noisy, adamw, seed=9)
    again = Train(other, fresh, optim.lr_scheduler.StepLR(fresh, 2, gamma=0.5))
    again(*data[0])  # what was compiled before goes on with what is loaded
    again.load_state_dict(saved)
    holon.set_rng_state(random)
    np.testing.assert_allclose([again(x, y).item() for x, y in data[4:]], rest, rtol=1e-6)
    assert_same_state(model, other, rtol=1e-6)
    with pytest.raises(RuntimeError, match="missing: lr_scheduler_0"):
        again.load_state_dict({k: v for k, v in saved.items() if k != "lr_scheduler_0"})


def test_learning_rates_and_options_are_read_at_each_call():
    (a, eager), (b, compiled) = made(Mlp, sgd), made(Mlp, sgd)
    graph = Train(b, compiled)
    for i, (x, y) in enumerate(batches(9)):
        for o in (eager, compiled):
            o.param_groups[0]["lr"] = 0.01 * (i + 1)
            if i == 3:
                o.param_groups[0]["weight_decay"] = 0.1
            if i == 6:
                o.param_groups[0]["nesterov"] = True
        eager_step(a, eager, x, y)
        graph(x, y)
    assert_same_state(a, b)
    # Other rates are taken over; another rule is compiled anew in the place of the first.
    assert graph._core.n_signatures == 1


def test_groups_several_optimizers_and_clipping():
    def optimizers(m):
        first = optim.SGD(
            [{"params": m.fc1.parameters(), "clip_grad_max_norm": 0.1}, {"params": [m.fc2.weight], "lr": 0.01}],
            lr=0.1,
            momentum=0.9,
        )
        return first, optim.AdamW([m.fc2.bias, *m.fc3.parameters()], lr=1e-2)

    holon.manual_seed(0)
    a = Mlp()
    holon.manual_seed(0)
    b = Mlp()
    eager, compiled = optimizers(a), optimizers(b)

    class G(nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = b
            for o in compiled:
                self.add_optimizer(o)

        def build(self, x, y):
            loss = nn.functional.mse_loss(self.model(x), y)
            loss.backward()
            return loss

    graph = G()
    for x, y in batches(6):
        for o in eager:
            o.zero_grad()
        nn.functional.mse_loss(a(x), y).backward()
        eager[0].clip_grad()
        for o in eager:
            o.step()
        graph(x, y)
    assert_same_state(a, b)
    assert set(graph.state_dict()) == {"model", "optimizer_0", "optimizer_1"}


def test_nested_arguments_and_results():
    class G(nn.Graph):
        def build(self, pair, *rest, scale=1.0, **more):
            return {
                "sum": pair[0] + pair[1]["b"],
                "rest": [r * scale for r in rest],
                "plain": (len(more), scale, None),
                "more": more,
            }

    graph, x = G(), holon.tensor([1.0, 2.0])
    out = graph((x, {"b": x + 1}), x, x * 3, scale=2, extra=x - 1, word="w")
    assert out["sum"].tolist() == [3, 5] and [r.tolist() for r in out["rest"]] == [[2, 4], [6, 12]]
    assert out["plain"] == (2, 2, None) and out["more"]["word"] == "w" and out["more"]["extra"].tolist() == [0, 1]
    assert graph((x, {"b": x}), x, x, scale=2, extra=x, word="w")["sum"].tolist() == [2, 4]
    assert graph._core.n_signatures == 1
    assert graph((x, {"b": x}), x, x, scale=3, extra=x, word="w")["rest"][0].tolist() == [3, 6]
    assert graph([x, {"b": x}], x, scale=True)["plain"] == (0, True, None)
    assert graph._core.n_signatures == 3
    with pytest.raises(TypeError, match=re.escape("G: args[0][1]['b'], a numpy.ndarray, cannot be compared")):
        graph((x, {"b": np.ones(2)}))
    with pytest.raises(TypeError, match=re.escape("kwargs['scale'], a set")):
        graph((x, {"b": x}), scale={1})


def test_modules_flags_and_the_gradient_mode_belong_to_the_signature():
    holon.manual_seed(0)
    model = Noisy()

    class G(nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model

        def build(self, x):
            return self.model(x)

    graph, (x, _) = G(), batches(1)[0]
    graph(x)
    assert int(model.norm.num_batches_tracked.item()) == 1
    model.eval()
    with holon.no_grad():
        want = model(x)
        np.testing.assert_array_equal(graph(x).numpy(), want.numpy())
    assert int(model.norm.num_batches_tracked.item()) == 1
    model.train()
    graph(x)
    assert graph._core.n_signatures == 2 and int(model.norm.num_batches_tracked.item()) == 2
    model.drop.training = False
    assert not np.array_equal(graph(x).numpy(), want.numpy())
    assert graph._core.n_signatures == 3


def test_new_parameters_are_seen():
    class G(nn.Graph):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 1, bias=False)

        def build(self, x):
            return self.layer(x)

    graph, x = G(), holon.ones(1, 2)
    graph(x)
    graph.layer.weight = nn.Parameter(holon.tensor([[3.0, 4.0]]))
    assert graph(x).item() == 7
    graph.layer.weight.data = holon.tensor([[1.0, 1.0]])  # other memory, the same layout
    assert graph(x).item() == 2
    graph.layer = nn.Linear(2, 1, bias=False)
    nn.init.ones_(graph.layer.weight)
    assert graph(x).item() == 2
    graph.layer.double()
    assert graph(x.double()).dtype == holon.float64
    graph.layer.load_state_dict({"weight": holon.tensor([[5.0, 5.0]])})
    assert graph(x.double()).item() == 10


def test_autocast_from_the_config():
    (a, eager), (b, compiled) = made(Mlp, sgd), made(Mlp, sgd)
    graph = Train(b, compiled)
    graph.config.enable_amp(True)
    for x, y in batches(5):
        eager.zero_grad()
        with holon.autocast():
            loss = nn.functional.mse_loss(a(x), y)
        loss.backward()
        eager.step()
        np.testing.assert_allclose(graph(x, y).item(), loss.item(), rtol=1e-5)
    assert_same_state(a, b)
    assert all(p.dtype == holon.float32 for p in b.parameters())
    assert "bfloat16" in graph.captured() and "amp bfloat16" in repr(graph)
    assert not holon.is_autocast_enabled()
    with holon.autocast():  # a region around the call is a signature of its own, and leaves no casts behind
        graph.config.enable_amp(False)
        eager.zero_grad()
        x, y = batches(1, seed=3)[0]
        want = nn.functional.mse_loss(a(x), y)
        np.testing.assert_allclose(graph(x, y).item(), want.item(), rtol=1e-5)


def test_gradient_accumulation_equals_the_whole_batch():
    (a, eager), (b, compiled) = made(Mlp, adamw), made(Mlp, adamw)
    graph = Train(b, compiled)
    graph.config.set_gradient_accumulation_steps(4)
    for x, y in batches(6, rows=16):
        loss = eager_step(a, eager, x, y)
        found = graph(x, y)
        assert found.shape == (4,)
        np.testing.assert_allclose(found.numpy().mean(), loss.item(), rtol=1e-5)
    assert_same_state(a, b, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="input 0 of the graph has 6 rows, which 4 micro-batches do not divide"):
        graph(*batches(1, rows=6)[0])


@pytest.mark.parametrize("how", ["module", "budget"])
def test_recomputation_equals_eager(how):
    (a, eager), (b, compiled) = made(Noisy, adamw), made(Noisy, adamw)
    graph = Train(b, compiled)
    if how == "module":
        b.to(nn.graph.GraphModule).activation_checkpointing = True
    else:
        graph.config.set_memory_budget(1 << 20)
    data = batches(6)
    holon.manual_seed(3)
    losses = [eager_step(a, eager, x, y).item() for x, y in data]
    holon.manual_seed(3)
    np.testing.assert_allclose([graph(x, y).item() for x, y in data], losses, rtol=1e-5)
    assert_same_state(a, b)
    if how == "module":
        assert graph.stats()["nodes"] > 0 and "recomputed" in repr(graph)
        tight = Train(*made(Mlp, sgd))
        tight.config.set_memory_budget(8)
        with pytest.raises(ValueError, match="budget"):
            tight(*data[0])


def test_compile_does_not_run():
    model, optimizer = made(Mlp, sgd)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    graph = Train(model, optimizer)
    assert "not captured yet" in repr(graph) and not graph.is_compiled
    x, y = batches(1)[0]
    graph.compile(x, y)
    assert graph.is_compiled and all((v == before[k]).all().item() for k, v in model.state_dict().items())
    assert "linear" in graph.captured() and "model.fc1" in graph.plan() and "test_graph.py:" in graph.plan()
    graph(x, y)
    assert graph._core.n_signatures == 1


def test_an_optimizer_outlives_its_graph():
    model, optimizer = made(Mlp, adamw)
    graph, data = Train(model, optimizer), batches(4)
    graph(*data[0])
    with pytest.raises(RuntimeError, match="a parameter .* of its AdamW is updated by another graph, Train"):
        Train(model, optimizer)(*data[0])
    del graph
    gc.collect()
    assert optimizer.state[model.fc1.weight]["step"] == 1
    Train(model, optimizer)(*data[1])
    assert optimizer.state[model.fc1.weight]["step"] == 2


def test_a_graph_without_an_optimizer_may_share_the_parameters():
    model, optimizer = made(Mlp, sgd)
    train = Train(model, optimizer)

    class Eval(nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model

        def build(self, x):
            return self.model(x)

    evaluate = Eval()
    x, y = batches(1)[0]
    for _ in range(3):
        train(x, y)
        np.testing.assert_allclose(evaluate(x).numpy(), model(x).detach().numpy(), rtol=1e-6)


def test_a_buffer_that_build_binds_anew():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", holon.zeros(1))

        def forward(self, x):
            self.seen = self.seen + x.sum()
            return x * self.seen

    class G(nn.Graph):
        def __init__(self):
            super().__init__()
            self.counter = Counter()

        def build(self, x):
            return self.counter(x)

    graph, buffer = G(), None
    buffer = graph.counter.seen
    assert [graph(holon.ones(2)).tolist() for _ in range(3)] == [[2, 2], [4, 4], [6, 6]]
    assert graph.counter.seen is buffer and buffer.item() == 6


def test_many_signatures_are_a_warning():
    class G(nn.Graph):
        def build(self, x, step):
            return x + step

    graph, x = G(), holon.ones(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(40):
            assert graph(x, step).item() == 1 + step
    assert [str(w.message) for w in caught if "compiled for 32 kinds of arguments" in str(w.message)]
    assert len(caught) == 1


def test_text():
    model, optimizer = made(Mlp, sgd)
    model.fc3.to(nn.graph.GraphModule).activation_checkpointing = True
    graph = Train(model, optimizer)
    graph.config.disable_passes("cse")
    text = repr(graph)
    for part in (
        "Train(",
        "(model): Mlp(",
        "(fc3): Linear(in_features=32, out_features=4, bias=True) recomputed",
        "(optimizer_0): SGD lr=0.05",
        "without pass cse",
        "not captured yet",
    ):
        assert part in text, text
    graph(*batches(1)[0])
    text = repr(graph)
    for part in (
        "(signature 0): (float32 [8, 12], float32 [8, 4])",
        "nodes captured",
        "instructions on this rank",
        "memory",
        "capture",
        "fuse_elementwise",
    ):
        assert part in text, text
    assert "cse" not in text.split("(signature 0)")[1]


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_gradients_used_in_build(micro_batches):
    """What build() computes from gradients comes after them: an update of its own, a penalty's value, a state."""
    w = nn.Parameter(holon.tensor([1.0, 2.0, 3.0]))
    norms = holon.zeros(1)

    class Own(nn.Graph):
        def __init__(self):
            super().__init__()
            self.config.set_gradient_accumulation_steps(micro_batches)
            self.config.verify(True)

        def build(self, x):
            y = (x * w).relu()
            loss = (y * y).sum()
            (g,) = holon.autograd.grad(loss, [w])
            with holon.no_grad():
                norms.add_(g.norm().reshape(1))
                if micro_batches == 1:
                    w.sub_(g * 0.01)
            return loss, g

    graph, x = Own(), holon.tensor([[1.0, -1.0, 2.0], [0.5, 1.0, -1.0]])
    want_w, want_norm = np.array([1.0, 2.0, 3.0]), 0.0
    for _ in range(3):
        loss, g = graph(x)
        for part in np.split(x.numpy(), micro_batches):
            y = np.maximum(part * want_w, 0)
            grad = (2 * y * part).sum(0) / micro_batches  # of the mean over micro-batches
            want_norm += np.linalg.norm(grad)
            if micro_batches == 1:
                np.testing.assert_allclose(g.numpy(), grad, rtol=1e-5)
                want_w = want_w - 0.01 * grad
    np.testing.assert_allclose(w.detach().numpy(), want_w, rtol=1e-5)
    np.testing.assert_allclose(norms.item(), want_norm, rtol=1e-5)


def test_classes_of_a_front_end():
    """What a class derived from Graph sets: its graphs' config, and what they keep about modules."""

    class Config(nn.graph.GraphConfig):
        def whole(self):
            self.set_gradient_accumulation_steps(1)

    class Kept(nn.graph.GraphModule):
        pass

    class FrontEnd(nn.Graph):
        config_class, module_class = Config, Kept

    class Run(FrontEnd):
        def __init__(self):
            super().__init__()
            self.model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
            self.config.whole()
            self.blocks = [self.model[0].to(kind) for kind in (nn.graph.GraphModule, Kept)]

        def build(self, x):
            return self.model(x)

    graph = Run()
    assert type(graph.config) is Config and type(graph.blocks[0]) is Kept and graph.blocks[1] is graph.blocks[0]
    assert graph(holon.ones(1, 2)).shape == (1, 2) and graph.blocks[0].name == "model.0"
    outside = nn.Linear(2, 2)
    assert type(outside.to(Kept)) is Kept and outside.to(Kept) is outside.to(nn.graph.GraphModule)
    assert outside.to(Kept).to(nn.Module) is outside


def test_hooks_that_come_and_go():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))

    class Run(nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model

        def build(self, x):
            return self.model(x)

    run, x = Run(), holon.ones(1, 2)
    before = run(x).tolist()
    with model[0].register_forward_hook(lambda module, args, result: result + 1):
        wanted = model(x).tolist()
        assert wanted != before and run(x).tolist() == wanted
    assert run(x).tolist() == before
    handle = model.register_forward_pre_hook(lambda module, args: (args[0] * 3,))
    assert run(x).tolist() == model(x).tolist() != before
    handle.remove()
    assert run(x).tolist() == before
    assert sum("signature" in line for line in repr(run).splitlines()) == 3
