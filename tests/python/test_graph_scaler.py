"""amp.GradScaler in an nn.Graph: what an eager step with scale(), step() and update() does."""

import numpy as np
import pytest

import holon
from holon import amp, nn, optim

B, S0 = holon.sbp.broadcast, holon.sbp.split(0)


class Train(nn.Graph):
    def __init__(self, model, optimizers, scaler, micro_batches=1, dtype=None, zero=0, at=None):
        super().__init__()
        self.model = model
        if at:
            for i, (part, placement) in enumerate(zip(model, at)):
                part.to(nn.graph.GraphModule).set_stage(i, placement)
        for optimizer in optimizers:
            self.add_optimizer(optimizer)
        self.set_grad_scaler(scaler)
        self.config.set_gradient_accumulation_steps(micro_batches, uneven=True)
        self.config.verify()
        if dtype is not None:
            self.config.enable_amp(True, dtype=dtype)
        if zero:
            self.config.enable_zero(True, stage=zero)

    def build(self, x, y):
        loss = nn.functional.mse_loss(self.model(x).float(), y)
        loss.backward()
        return loss


def numbers(steps=8, rows=8, bad=()):
    rng = np.random.default_rng(0)
    data = [
        (rng.normal(size=(rows, 6)).astype(np.float32), rng.normal(size=(rows, 4)).astype(np.float32))
        for _ in range(steps)
    ]
    for i in bad:
        data[i][1][1, 2] = np.inf
    return data


def make(at=None):
    holon.manual_seed(1)
    model = nn.Sequential(nn.Sequential(nn.Linear(6, 12), nn.Tanh()), nn.Linear(12, 4))
    if at:
        for part, placement in zip(model, at * 2):
            part.to_global(placement, B)
    return model


def on(array, at, sbp=S0):
    return holon.tensor(array) if at is None else holon.tensor(array).to_global(at, B).to_global(at, sbp)


def value(t):
    return (t.full_value() if t.is_global else t).numpy()


def eager(data, at=None, dtype=None, clip=None, scale=256.0):
    model = make(at)
    group = {"params": list(model.parameters())} | ({} if clip is None else {"clip_grad_max_norm": clip})
    optimizer, scaler = optim.AdamW([group], lr=1e-2), amp.GradScaler(init_scale=scale, growth_interval=3)
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        with holon.autocast("cpu", dtype=dtype or holon.float16, enabled=dtype is not None):
            h = model[0](on(x, at and at[0]))
            h = h if at is None else h.to_global(at[-1], S0)
            loss = nn.functional.mse_loss(model[1](h).float(), on(y, at and at[-1]))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if clip is not None:
            optimizer.clip_grad()
        scaler.step(optimizer)
        scaler.update()
        losses.append(value(loss).mean())
    return losses, [value(p) for p in model.parameters()], scaler


def compiled(data, at=None, micro_batches=1, dtype=None, clip=None, zero=0, scale=256.0):
    model = make(at)
    group = {"params": list(model.parameters())} | ({} if clip is None else {"clip_grad_max_norm": clip})
    optimizer, scaler = optim.AdamW([group], lr=1e-2), amp.GradScaler(init_scale=scale, growth_interval=3)
    graph = Train(model, [optimizer], scaler, micro_batches, dtype, zero, at if at and len(at) > 1 else None)
    losses = [value(graph(on(x, at and at[0]), on(y, at and at[-1]))).mean() for x, y in data]
    return losses, [value(p) for p in model.parameters()], scaler, graph, optimizer


def assert_like(found, want, tolerance=1e-4):
    np.testing.assert_allclose(found[0], want[0], rtol=tolerance, atol=tolerance)
    for a, b in zip(found[1], want[1]):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
    assert found[2].state_dict() == want[2].state_dict()


@pytest.mark.parametrize("micro_batches", [1, 2, 3])
@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("bad", [(), (0, 4)])
def test_is_eager(micro_batches, clip, bad):
    data = numbers(bad=bad)
    want = eager(data, clip=clip)
    *found, graph, optimizer = compiled(data, micro_batches=micro_batches, clip=clip)
    assert_like(found, want)
    assert optimizer.state_dict()["state"][0]["step"] == len(data) - len(bad)  # steps left out do not count


@pytest.mark.parametrize("stages, zero", [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 2)])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_ranks(stages, zero, micro_batches):
    data = numbers(bad=(2,))

    def program(rank):
        at = [holon.placement("cpu", [2 * i, 2 * i + 1]) for i in range(stages)]
        want = eager(data, at)
        assert_like(compiled(data, at, micro_batches, zero=zero), want)

    holon.run_ranks(2 * stages, program)


def test_float16():
    """Gradients that float16 cannot hold as they are come through, and a scale that is too large falls."""
    data = numbers(rows=8)
    want = eager(data)
    for scale, tolerance in ((256.0, 5e-3), (2.0**24, 1)):
        *found, graph, _ = compiled(data, dtype=holon.float16, scale=scale)
        np.testing.assert_allclose(found[0], want[0], rtol=tolerance, atol=tolerance)
    assert found[2].get_scale() < 2.0**24 and np.isfinite(found[0]).all()


def test_gradients_that_are_one_tensor_are_divided_once_each():
    a, b, c = (nn.Parameter(holon.tensor([float(i), 2.0])) for i in range(3))

    class Sum(nn.Graph):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = a, b, c
            self.add_optimizer(optim.SGD([a, b], lr=1.0))
            self.add_optimizer(optim.SGD([c], lr=1.0))
            self.set_grad_scaler(amp.StaticGradScaler(64.0))

        def build(self, x):
            total = a + b + c.reshape(2, 1).reshape(2) * x
            total.sum().backward()
            return total

    graph = Sum()
    graph(holon.ones(2))
    assert [p.tolist() for p in (a, b, c)] == [[-1.0, 1.0], [0.0, 1.0], [1.0, 1.0]]
    # An optimizer whose gradients are finite goes on.
    graph(holon.tensor([float("inf"), 1.0]))
    assert [p.tolist() for p in (a, b, c)] == [[-2.0, 0.0], [-1.0, 0.0], [1.0, 1.0]]


def test_bookkeeping():
    scaler = amp.GradScaler(init_scale=8.0, growth_interval=1)
    model = make()
    graph = Train(model, [optim.SGD(model.parameters(), lr=0.1)], scaler)
    x, y = (holon.tensor(v) for v in numbers(1)[0])
    graph(x, y)
    graph(x, y)
    assert scaler.get_scale() == 32.0 and graph._core.n_signatures == 1  # another scale is no other signature
    assert graph.state_dict()["grad_scaler"]["scale"] == 32.0
    state = graph.state_dict()
    graph(x, y)
    graph.load_state_dict(state)
    assert scaler.get_scale() == 32.0
    off = amp.GradScaler(enabled=False)
    graph.set_grad_scaler(off)
    before = [value(p).copy() for p in model.parameters()]
    graph(x, y)
    assert off.get_scale() == 1.0 and not np.array_equal(before[0], value(next(iter(model.parameters()))))
    with pytest.raises(TypeError, match="takes a GradScaler, got float"):
        graph.set_grad_scaler(2.0)

    class Given(Train):
        def build(self, x, y):
            out = self.model(x)
            out.backward(holon.ones_like(out))
            return out

    other = make()
    with pytest.raises(RuntimeError, match="set_grad_scaler: build.. passes a gradient to backward"):
        Given(other, [optim.SGD(other.parameters(), lr=0.1)], scaler)(x, y)
