"""Gradients clipped in an nn.Graph: by groups of an optimizer and by clip_grad_norm_ and clip_grad_value_ in build(),
as eagerly."""

import math

import numpy as np
import pytest

import holon
from holon import amp, nn, optim

STEPS = 6


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.norm, self.fc2 = nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x):
        return self.fc2(holon.tanh(self.norm(self.fc1(x))))


def make():
    holon.manual_seed(3)
    return Mlp()


def grouped(model, rule=optim.AdamW, limit=0.05, **options):
    """Decay for matrices and none for the rest."""
    clip = {} if limit is None else {"clip_grad_max_norm": limit, "clip_grad_norm_type": 2.0}
    matrices = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim == 1]
    return rule(
        [{"params": matrices, "weight_decay": 0.1, **clip}, {"params": rest, "weight_decay": 0.0, **clip}], **options
    )


def batches(steps=STEPS, rows=8):
    rng = np.random.default_rng(0)
    for _ in range(steps):
        yield (
            holon.tensor(rng.normal(size=(rows, 6)).astype(np.float32)),
            holon.tensor(rng.normal(size=(rows, 4)).astype(np.float32)),
        )


class Train(nn.Graph):
    def __init__(self, model, *optimizers, clip=None, micro_batches=1, scaler=None):
        super().__init__()
        self.model, self.clip = model, clip
        for optimizer in optimizers:
            self.add_optimizer(optimizer)
        self.set_grad_scaler(scaler)
        self.config.set_gradient_accumulation_steps(micro_batches, uneven=True)
        self.config.verify()
        self.config.disable_passes(["fuse_epilogue"])  # a product that is rounded in other places

    def build(self, x, y):
        loss = nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        return loss if self.clip is None else (loss, self.clip())


def assert_same(a, b):
    for (name, p), q in zip(a.named_parameters(), b.parameters()):
        np.testing.assert_array_equal(p.numpy(), q.numpy(), err_msg=name)


def backward(model, x, y):
    for p in model.parameters():
        p.grad = None
    nn.functional.mse_loss(model(x), y).backward()


def test_groups_with_one_limit_are_clipped_as_one():
    a, b = make(), make()
    eager, compiled = grouped(a, lr=1e-2), grouped(b, lr=1e-2)
    c = make()
    by_norm = grouped(c, limit=None, lr=1e-2)
    graph = Train(b, compiled)
    assert graph.grad_norms() == []
    for x, y in batches():
        backward(a, x, y)
        (norm,) = eager.clip_grad()
        eager.step()
        backward(c, x, y)
        assert nn.utils.clip_grad_norm_(c.parameters(), 0.05).item() == pytest.approx(norm.item(), rel=1e-6)
        by_norm.step()
        graph(x, y)
        assert [np.float32(n) for n in graph.grad_norms()] == [norm.item()] and norm.item() > 0.1
    assert_same(a, b)
    assert_same(a, c)


def test_a_unit_clip_moves_weights_by_one():
    model = make()
    before = [p.numpy().copy() for p in model.parameters()]
    graph = Train(model, grouped(model, optim.SGD, limit=1.0, lr=1.0))
    for group in graph._optimizers[0].param_groups:
        group["weight_decay"] = 0.0
    x, y = next(batches(1))
    graph(x * 30, y * 300)
    assert graph.grad_norms()[0] > 10
    moved = math.sqrt(sum(((p.numpy() - q) ** 2).sum() for p, q in zip(model.parameters(), before)))
    assert moved == pytest.approx(1, rel=1e-4)


def test_groups_with_other_limits_are_clipped_apart():
    a, b = make(), make()
    optimizers = [grouped(m, lr=1e-2) for m in (a, b)]
    for o in optimizers:
        o.param_groups[1]["clip_grad_max_norm"] = 0.02
    graph = Train(b, optimizers[1])
    for x, y in batches():
        backward(a, x, y)
        norms = [n.item() for n in optimizers[0].clip_grad()]
        optimizers[0].step()
        graph(x, y)
        assert [np.float32(n) for n in graph.grad_norms()] == norms and len(norms) == 2
    assert_same(a, b)


@pytest.mark.parametrize("norm_type", [2.0, 1.0, 3.0, math.inf])
@pytest.mark.parametrize("micro_batches", [1, 2, 3])
@pytest.mark.parametrize("scaled", [False, True])
def test_clip_grad_norm_in_build(norm_type, micro_batches, scaled):
    def clip(m):
        return nn.utils.clip_grad_norm_(m.parameters(), 0.05, norm_type)

    a, b = make(), make()
    # Two optimizers: the norm is that of all parameters.
    eager, compiled = (
        [optim.SGD(m.fc1.parameters(), lr=0.1, momentum=0.9), optim.AdamW([*m.norm.parameters(), *m.fc2.parameters()])]
        for m in (a, b)
    )
    scaler = amp.GradScaler(init_scale=256.0, growth_interval=2) if scaled else None
    graph = Train(b, *compiled, clip=lambda: clip(b), micro_batches=micro_batches, scaler=scaler)
    for x, y in batches():
        backward(a, x, y)
        want = clip(a)
        for o in eager:
            o.step()
        loss, norm = graph(x, y)
        assert norm.shape == () and norm.dtype == holon.float32 and norm.item() == np.float32(graph.grad_norms()[0])
        if micro_batches == 1:
            assert norm.item() == want.item()
        assert norm.item() == pytest.approx(want.item(), rel=1e-4)
    if micro_batches == 1:
        assert_same(a, b)
    for p, q in zip(a.parameters(), b.parameters()):
        np.testing.assert_allclose(p.numpy(), q.numpy(), rtol=1e-4, atol=1e-5)


def test_clip_grad_of_the_optimizer_in_build_clips_once():
    a, b = make(), make()
    optimizers = [grouped(m, lr=1e-2) for m in (a, b)]
    graph = Train(a, optimizers[0]), Train(b, optimizers[1], clip=lambda: optimizers[1].clip_grad())
    for x, y in batches():
        graph[0](x, y)
        _, (norm,) = graph[1](x, y)
        assert len(graph[1].grad_norms()) == 1 and graph[0].grad_norms() == graph[1].grad_norms()
        assert norm.item() == np.float32(graph[0].grad_norms()[0])
    assert_same(a, b)


def test_clip_grad_value_in_build():
    a, b = make(), make()
    eager, compiled = grouped(a, limit=None, lr=1e-2), grouped(b, limit=None, lr=1e-2)
    graph = Train(b, compiled, clip=lambda: nn.utils.clip_grad_value_(b.parameters(), 0.01))
    for x, y in batches():
        backward(a, x, y)
        assert max(abs(p.grad.numpy()).max() for p in a.parameters()) > 0.01
        nn.utils.clip_grad_value_(a.parameters(), 0.01)
        eager.step()
        graph(x, y)
    assert graph.grad_norms() == []
    assert_same(a, b)


def test_clippings_follow_each_other_and_may_overlap():
    a, b = make(), make()

    def clip(m):
        nn.utils.clip_grad_value_(m.fc1.parameters(), 0.02)
        first = nn.utils.clip_grad_norm_([*m.fc1.parameters(), *m.norm.parameters()], 0.03)
        return first, nn.utils.clip_grad_norm_(m.parameters(), 0.04), first * 2 + 1

    eager, compiled = grouped(a, lr=1e-2), grouped(b, lr=1e-2)
    graph = Train(b, compiled, clip=lambda: clip(b))
    for x, y in batches():
        backward(a, x, y)
        want = [n.item() for n in clip(a)]
        last = eager.clip_grad()[0].item()
        eager.step()
        assert [n.item() for n in graph(x, y)[1]] == want
        assert [np.float32(n) for n in graph.grad_norms()] == [*want[:2], last]
    assert_same(a, b)


def test_gradients_of_no_optimizer_count():
    a, b = make(), make()
    scaler = amp.GradScaler(init_scale=64.0)
    eager, compiled = (optim.SGD(m.fc1.parameters(), lr=0.1) for m in (a, b))
    graph = Train(b, compiled, clip=lambda: nn.utils.clip_grad_norm_(b.parameters(), 0.05), scaler=scaler)
    for x, y in batches():
        backward(a, x, y)
        want = nn.utils.clip_grad_norm_(a.parameters(), 0.05)
        eager.step()
        assert graph(x, y)[1].item() == want.item()
    assert_same(a, b)
    only = Train(b, clip=lambda: nn.utils.clip_grad_norm_(b.parameters(), 0.05))
    before = [p.numpy().copy() for p in b.parameters()]
    backward(b, x, y)
    assert only(x, y)[1].item() == nn.utils.clip_grad_norm_(b.parameters(), 0.05).item()
    for p, q in zip(b.parameters(), before):
        np.testing.assert_array_equal(p.numpy(), q)


@pytest.mark.parametrize("micro_batches", [2, 3])
def test_build_computes_with_norms(micro_batches):
    model = make()

    def clip():
        first = nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        second = nn.utils.clip_grad_norm_(model.parameters(), 0.04)
        return holon.tanh(first * 2 + 1) * second, (first > 1).float() - second

    graph = Train(model, grouped(model, limit=None, lr=1e-2), clip=clip, micro_batches=micro_batches)
    for x, y in batches():
        _, (product, difference) = graph(x, y)
        first, second = graph.grad_norms()
        assert product.item() == pytest.approx(math.tanh(first * 2 + 1) * second, rel=1e-5)
        assert difference.item() == pytest.approx((first > 1) - second, rel=1e-5)


def test_stages_that_are_cut_by_cost():
    def program(rank):
        at = holon.placement("cpu", [0, 1])

        def step(staged):
            holon.manual_seed(0)
            model = nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4)])
            model.to_global(at, holon.sbp.broadcast)
            graph = Train(model, grouped(model, lr=1e-2), clip=None, micro_batches=4)
            if staged:
                graph.config.pipeline(stages=2)
            norms = []
            for x, y in batches():
                x, y = (t.to_global(at, holon.sbp.broadcast) for t in (x, y[:, :1] * holon.ones(1, 6)))
                graph(x, y)
                norms += graph.grad_norms()
            return norms, [p.full_value().numpy() for p in model.parameters()]

        (norms, weights), (want_norms, want_weights) = step(True), step(False)
        assert len(norms) == STEPS and min(norms) > 0.05
        np.testing.assert_allclose(norms, want_norms, rtol=1e-5)
        for a, b in zip(weights, want_weights):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)

    holon.run_ranks(2, program)


def test_a_gradient_that_is_returned_is_not_clipped():
    p = nn.Parameter(holon.tensor([3.0, 4.0]))

    class Returns(nn.Graph):
        def __init__(self):
            super().__init__()
            self.p = p
            self.add_optimizer(optim.SGD([p], lr=1.0))

        def build(self, x):
            (self.p * x).sum().backward()
            grad = self.p.grad * 1
            return grad, self.p.grad, nn.utils.clip_grad_norm_([self.p], 1.0)

    grad, same, norm = Returns()(holon.tensor([6.0, 8.0]))
    assert grad.tolist() == same.tolist() == [6.0, 8.0] and norm.item() == 10.0
    np.testing.assert_allclose(p.tolist(), [3.0 - 0.6, 4.0 - 0.8], rtol=1e-5)


def test_norms_that_are_not_finite():
    model = make()
    scaler = amp.GradScaler(init_scale=256.0)
    graph = Train(model, grouped(model, lr=1e-2), scaler=scaler)
    (x, y), (_, bad) = batches(2)
    bad[1, 2] = math.inf
    graph(x, y)
    before = [p.numpy().copy() for p in model.parameters()]
    graph(x, bad)
    assert not math.isfinite(graph.grad_norms()[0]) and scaler.get_scale() == 128.0
    for p, q in zip(model.parameters(), before):
        np.testing.assert_array_equal(p.numpy(), q)

    strict = make()
    before = [p.numpy().copy() for p in strict.parameters()]
    graph = Train(
        strict,
        grouped(strict, limit=None, lr=1e-2),
        clip=lambda: nn.utils.clip_grad_norm_(strict.parameters(), 1.0, error_if_nonfinite=True),
    )
    with pytest.raises(RuntimeError, match="norm of order 2 of the gradients is (inf|nan)"):
        graph(x, bad)
    for p, q in zip(strict.parameters(), before):
        np.testing.assert_array_equal(p.numpy(), q)
    graph(x, y)


def test_a_norm_is_written_to_a_buffer_and_compared_with_what_was_there():
    class Logged(Train):
        def __init__(self, model, optimizer, **options):
            super().__init__(model, optimizer, **options)
            model.register_buffer("last", holon.tensor(0.0))

        def build(self, x, y):
            nn.functional.mse_loss(self.model(x), y).backward()
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), 0.05)
            growth = norm - self.model.last
            self.model.last.copy_(norm)
            return growth

    for micro_batches in (1, 2):
        model = make()
        graph = Logged(model, grouped(model, limit=None, lr=1e-2), micro_batches=micro_batches)
        last = np.float32(0)
        for x, y in batches():
            growth = graph(x, y)
            assert model.last.item() == np.float32(graph.grad_norms()[0])
            assert growth.shape == () and growth.item() == np.float32(model.last.item()) - last
            last = np.float32(model.last.item())


def test_what_build_cannot_do():
    p = nn.Parameter(holon.ones(4))

    def loss(x):
        return (x * p).sum()

    def before_backward(x):
        nn.utils.clip_grad_norm_([p], 1.0)
        loss(x).backward()

    def backward_after(x):
        loss(x).backward()
        nn.utils.clip_grad_norm_([p], 1.0)
        loss(x).backward()

    def read_after(x):
        loss(x).backward()
        nn.utils.clip_grad_norm_([p], 1.0)
        return p.grad

    def with_micro_batches(x):
        loss(x).backward()
        return nn.utils.clip_grad_norm_([p], 1.0) + x.mean()

    def negative(x):
        loss(x).backward()
        nn.utils.clip_grad_norm_([p], -1.0)

    cases = [
        (before_backward, RuntimeError, "none of the 1 parameters has one yet. Call backward"),
        (backward_after, RuntimeError, "added to after it was clipped.*clip after the last backward"),
        (read_after, RuntimeError, "read after it was clipped"),
        (with_micro_batches, RuntimeError, "once per step.*of each of the 2 micro-batches. Return both"),
        (negative, ValueError, "max_norm must not be negative"),
    ]
    for use, kind, message in cases:

        class Refused(nn.Graph):
            def __init__(self):
                super().__init__()
                self.p = p
                self.add_optimizer(optim.SGD([p], lr=1.0))
                self.config.set_gradient_accumulation_steps(2)

            def build(self, x, use=use):
                return use(x)

        with pytest.raises(kind, match=message):
            Refused()(holon.ones(2, 4))
    model = make()
    graph = Train(model, grouped(model, limit=-1.0, lr=1e-2))
    with pytest.raises(ValueError, match="clip_grad_max_norm is -1; it must not be negative. Pass None"):
        graph(*next(batches(1)))
    assert p.tolist() == [1.0] * 4
