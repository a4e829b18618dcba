"""Optimizers against the formulas in NumPy, and the bookkeeping around them."""
import math

import numpy as np
import pytest

import holon
from holon import nn, optim

STEPS = 5


def run(make, gradients, start):
    """Returns the parameter after each step of an optimizer that is given these gradients."""
    p = nn.Parameter(holon.tensor(start))
    optimizer, values = make([p]), []
    for gradient in gradients:
        optimizer.zero_grad()
        (p * holon.tensor(gradient)).sum().backward()
        optimizer.step()
        values.append(p.detach().numpy().copy())
    return values


def data():
    rng = np.random.default_rng(7)
    return rng.normal(size=(STEPS, 3, 4)), rng.normal(size=(3, 4))


@pytest.mark.parametrize("options", [
    {}, {"momentum": 0.9}, {"momentum": 0.9, "dampening": 0.3}, {"momentum": 0.9, "nesterov": True}, {"weight_decay": 0.1},
    {"momentum": 0.5, "weight_decay": 0.1, "maximize": True}], ids=str)
def test_sgd(options):
    gradients, p = data()
    momentum, lr, velocity, expected = options.get("momentum", 0), 0.1, None, []
    for g in gradients:
        g = (-g if options.get("maximize") else g) + options.get("weight_decay", 0) * p
        if momentum:
            velocity = g if velocity is None else momentum * velocity + (1 - options.get("dampening", 0)) * g
            g = g + momentum * velocity if options.get("nesterov") else velocity
        p = p - lr * g
        expected.append(p)
    np.testing.assert_allclose(run(lambda ps: optim.SGD(ps, lr=lr, **options), gradients, data()[1]), expected, rtol=1e-12)


@pytest.mark.parametrize("rule", [optim.Adam, optim.AdamW])
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}, {"amsgrad": True, "weight_decay": 0.0}, {"maximize": True}], ids=str)
def test_adam(rule, options):
    gradients, p = data()
    lr, (b1, b2), eps = 0.05, (0.8, 0.95), 1e-6
    decay = options.get("weight_decay", 0.01 if rule is optim.AdamW else 0.0)
    m = v = largest = np.zeros_like(p)
    expected = []
    for step, g in enumerate(gradients, 1):
        g = -g if options.get("maximize") else g
        if rule is optim.AdamW:
            p = p * (1 - lr * decay)
        else:
            g = g + decay * p
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        largest = np.maximum(largest, v)
        used = largest if options.get("amsgrad") else v
        p = p - lr * (m / (1 - b1 ** step)) / (np.sqrt(used / (1 - b2 ** step)) + eps)
        expected.append(p)
    found = run(lambda ps: rule(ps, lr=lr, betas=(b1, b2), eps=eps, **options), gradients, data()[1])
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_a_parameter_without_gradient_stays_and_counts_no_step():
    a, b = nn.Parameter(holon.ones(2)), nn.Parameter(holon.ones(2))
    optimizer = optim.Adam([a, b], lr=0.1)
    a.sum().backward()
    optimizer.step()
    assert b.tolist() == [1, 1] and b not in optimizer.state
    b.sum().backward()
    optimizer.step()
    assert optimizer.state[a]["step"] == 2 and optimizer.state[b]["step"] == 1
    np.testing.assert_allclose(b.detach().numpy(), [0.9, 0.9], rtol=1e-5)


def test_state_dict_goes_on_where_it_was():
    def fresh():
        return nn.Parameter(holon.tensor([1.0, -2.0, 3.0], dtype=holon.float64))

    def advance(p, optimizer, steps):
        for _ in range(steps):
            optimizer.zero_grad()
            (p * p * p).sum().backward()
            optimizer.step()

    for make in (lambda ps: optim.AdamW(ps, lr=0.01), lambda ps: optim.SGD(ps, lr=0.01, momentum=0.9)):
        p = fresh()
        optimizer = make([p])
        advance(p, optimizer, 3)
        q = nn.Parameter(p.detach().clone())
        other = make([q])
        other.load_state_dict(optimizer.state_dict())
        advance(p, optimizer, 2)
        advance(q, other, 2)
        assert p.tolist() == q.tolist()


def test_groups():
    a, b = nn.Parameter(holon.ones(1)), nn.Parameter(holon.ones(1))
    optimizer = optim.SGD([{"params": [a], "lr": 1.0}, {"params": b}], lr=0.5)
    (a + b).sum().backward()
    optimizer.step()
    assert (a.item(), b.item()) == (0.0, 0.5)
    c = nn.Parameter(holon.ones(1))
    optimizer.add_param_group({"params": [c], "weight_decay": 0.1})
    assert [g["lr"] for g in optimizer.param_groups] == [1.0, 0.5, 0.5]
    assert "weight_decay: 0.1" in repr(optimizer)


def test_mistakes_are_named():
    p = nn.Parameter(holon.ones(2))
    with pytest.raises(ValueError, match="no parameters"):
        optim.SGD([])
    with pytest.raises(TypeError, match=r"write \[tensor\]"):
        optim.SGD(p)
    with pytest.raises(ValueError, match="must be a leaf"):
        optim.SGD([p * 2])
    with pytest.raises(ValueError, match="given twice"):
        optim.SGD([p, p])
    with pytest.raises(ValueError, match="lr is -1"):
        optim.SGD([p], lr=-1)
    with pytest.raises(ValueError, match="no option 'momentun'"):
        optim.SGD([{"params": [p], "momentun": 1}])
    with pytest.raises(ValueError, match="betas"):
        optim.Adam([p], betas=(0.9, 1.0))


def rates(make, steps):
    optimizer = optim.SGD([nn.Parameter(holon.ones(1))], lr=0.1)
    schedule, found = make(optimizer), []
    for _ in range(steps):
        found.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return found


S = optim.lr_scheduler


@pytest.mark.parametrize("make, expected", [
    (lambda o: S.StepLR(o, 2, 0.5), lambda t: 0.1 * 0.5 ** (t // 2)),
    (lambda o: S.MultiStepLR(o, [5, 2], 0.5), lambda t: 0.1 * 0.5 ** ((t >= 2) + (t >= 5))),
    (lambda o: S.ExponentialLR(o, 0.9), lambda t: 0.1 * 0.9 ** t),
    (lambda o: S.LinearLR(o, 0.2, 1.0, 4), lambda t: 0.1 * (0.2 + 0.8 * min(t, 4) / 4)),
    (lambda o: S.CosineAnnealingLR(o, 6, 0.01), lambda t: 0.01 + 0.09 * (1 + math.cos(math.pi * t / 6)) / 2),
    (lambda o: S.LambdaLR(o, lambda t: 1 / (t + 1)), lambda t: 0.1 / (t + 1)),
    (lambda o: S.WarmUpLR(o, 0.1, 3), lambda t: 0.1 * (0.1 + 0.9 * min(t, 3) / 3)),
    (lambda o: S.WarmUpLR(S.StepLR(o, 4, 0.5), 0.1, 2, "constant"), lambda t: 0.1 * 0.5 ** (t // 4) * (1 if t >= 2 else 0.1)),
], ids=["step", "multi_step", "exponential", "linear", "cosine", "lambda", "warm_up", "warm_up_of_step"])
def test_schedule(make, expected):
    np.testing.assert_allclose(rates(make, 8), [expected(t) for t in range(8)], rtol=1e-12)


def test_schedule_goes_on_where_it_was():
    optimizer = optim.SGD([nn.Parameter(holon.ones(1))], lr=0.1)
    schedule = S.CosineAnnealingLR(optimizer, 10)
    for _ in range(4):
        schedule.step()
    other_optimizer = optim.SGD([nn.Parameter(holon.ones(1))], lr=0.1)
    other = S.CosineAnnealingLR(other_optimizer, 10)
    other.load_state_dict(schedule.state_dict())
    assert other.get_last_lr() == schedule.get_last_lr()
    schedule.step()
    other.step()
    assert other.get_last_lr() == schedule.get_last_lr()
