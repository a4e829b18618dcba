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


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "dampening": 0.3},
        {"momentum": 0.9, "nesterov": True},
        {"weight_decay": 0.1},
        {"momentum": 0.5, "weight_decay": 0.1, "maximize": True},
    ],
    ids=str,
)
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
    np.testing.assert_allclose(
        run(lambda ps: optim.SGD(ps, lr=lr, **options), gradients, data()[1]), expected, rtol=1e-12
    )


@pytest.mark.parametrize("rule", [optim.Adam, optim.AdamW])
@pytest.mark.parametrize(
    "options", [{}, {"weight_decay": 0.1}, {"amsgrad": True, "weight_decay": 0.0}, {"maximize": True}], ids=str
)
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
        p = p - lr * (m / (1 - b1**step)) / (np.sqrt(used / (1 - b2**step)) + eps)
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


def decayed(g, p, o):
    return (-g if o.get("maximize") else g) + o.get("weight_decay", 0) * p


def adagrad(o, p, gradients):
    total = np.full_like(p, o.get("initial_accumulator_value", 0.0))
    for step, g in enumerate(gradients):
        g = decayed(g, p, o)
        total = total + g * g
        p = p - o["lr"] / (1 + step * o.get("lr_decay", 0)) * g / (np.sqrt(total) + 1e-10)
        yield p


def adadelta(o, p, gradients):
    squares = steps = np.zeros_like(p)
    rho, eps = o.get("rho", 0.9), o.get("eps", 1e-6)
    for g in gradients:
        g = decayed(g, p, o)
        squares = rho * squares + (1 - rho) * g * g
        step = np.sqrt(steps + eps) / np.sqrt(squares + eps) * g
        steps = rho * steps + (1 - rho) * step * step
        p = p - o["lr"] * step
        yield p


def rmsprop(o, p, gradients):
    squares = means = buffer = np.zeros_like(p)
    alpha = o.get("alpha", 0.99)
    for g in gradients:
        g = decayed(g, p, o)
        squares, means = alpha * squares + (1 - alpha) * g * g, alpha * means + (1 - alpha) * g
        step = g / (np.sqrt(squares - means**2 if o.get("centered") else squares) + 1e-8)
        if o.get("momentum"):
            buffer = step = o["momentum"] * buffer + step
        p = p - o["lr"] * step
        yield p


def lamb(o, p, gradients):
    m = v = np.zeros_like(p)
    for step, g in enumerate(gradients, 1):
        coupled = not o.get("adam_w_mode", True)
        g = decayed(g, p, o if coupled else {**o, "weight_decay": 0})
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        c1, c2 = (1 - 0.9**step, 1 - 0.999**step) if o.get("do_bias_correction", True) else (1, 1)
        direction = m / c1 / (np.sqrt(v / c2) + 1e-8) + (0 if coupled else o.get("weight_decay", 0)) * p
        p = p - o["lr"] * np.linalg.norm(p) / np.linalg.norm(direction) * direction
        yield p


def lars(o, p, gradients):
    velocity, decay, trust = None, o.get("weight_decay", 0), o.get("trust_coefficient", 1e-3)
    for g in gradients:
        scale = trust * np.linalg.norm(p) / (np.linalg.norm(g) + decay * np.linalg.norm(p) + 1e-8)
        g = scale * decayed(g, p, o)
        velocity = g if velocity is None else 0.9 * velocity + g
        p = p - o["lr"] * velocity
        yield p


@pytest.mark.parametrize(
    "rule, reference, options",
    [
        (optim.Adagrad, adagrad, {"lr": 0.1}),
        (optim.Adagrad, adagrad, {"lr": 0.1, "lr_decay": 0.2, "weight_decay": 0.1}),
        (optim.Adagrad, adagrad, {"lr": 0.1, "initial_accumulator_value": 0.5, "maximize": True}),
        (optim.Adadelta, adadelta, {"lr": 1.0}),
        (optim.Adadelta, adadelta, {"lr": 0.5, "rho": 0.8, "eps": 1e-3, "weight_decay": 0.1}),
        (optim.RMSprop, rmsprop, {"lr": 0.01}),
        (optim.RMSprop, rmsprop, {"lr": 0.01, "centered": True, "alpha": 0.9}),
        (optim.RMSprop, rmsprop, {"lr": 0.01, "momentum": 0.5, "weight_decay": 0.1, "maximize": True}),
        (optim.LAMB, lamb, {"lr": 0.01}),
        (optim.LAMB, lamb, {"lr": 0.01, "weight_decay": 0.1, "maximize": True}),
        (optim.LAMB, lamb, {"lr": 0.01, "weight_decay": 0.1, "adam_w_mode": False, "do_bias_correction": False}),
        (optim.LARS, lars, {"lr": 1.0}),
        (optim.LARS, lars, {"lr": 1.0, "trust_coefficient": 0.01, "weight_decay": 0.1}),
    ],
    ids=lambda v: v.__name__ if isinstance(v, type) else str(v) if isinstance(v, dict) else "",
)
def test_rule(rule, reference, options):
    gradients, p = data()
    found = run(lambda ps: rule(ps, **options), gradients, p)
    np.testing.assert_allclose(found, list(reference(options, p, gradients)), rtol=1e-9)


def test_rules_are_the_same_on_two_ranks():
    gradients, start = data()
    cases = [
        (optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (optim.AdamW, {"lr": 0.1}),
        (optim.Adagrad, {"lr": 0.1}),
        (optim.Adadelta, {}),
        (optim.RMSprop, {"centered": True}),
        (optim.LAMB, {"lr": 0.1, "weight_decay": 0.1}),
        (optim.LARS, {"lr": 1.0}),
    ]
    expected = [run(lambda ps, r=rule, o=options: r(ps, **o), gradients, start)[-1] for rule, options in cases]

    def program(rank):
        placement = holon.placement("cpu", [0, 1])
        for (rule, options), want in zip(cases, expected):
            for sbp in (holon.sbp.broadcast, holon.sbp.split(0), holon.sbp.split(1)):
                p = nn.Parameter(holon.tensor(start, placement=placement, sbp=sbp))
                optimizer = rule([p], **options)
                for g in gradients:
                    optimizer.zero_grad()
                    (p * holon.tensor(g, placement=placement, sbp=holon.sbp.broadcast)).sum().backward()
                    optimizer.step()
                np.testing.assert_allclose(
                    p.detach().full_value().numpy(), want, rtol=1e-10, err_msg=f"{rule.__name__} {sbp}"
                )
                saved = optimizer.state_dict()
                q = nn.Parameter(holon.tensor(start, placement=placement, sbp=holon.sbp.split(1)))
                other = rule([q], **options)
                other.load_state_dict(saved)
                for name, value in saved["state"][0].items():
                    if name != "step":
                        assert other.state[q][name].sbp == (holon.sbp.split(1),)
                        np.testing.assert_array_equal(
                            other.state[q][name].full_value().numpy(), value.full_value().numpy()
                        )

    holon.run_ranks(2, program)


def test_master_weights_keep_small_steps():
    p, q = (nn.Parameter(holon.ones(3, dtype=holon.bfloat16)) for _ in range(2))
    kept, lost = optim.SGD([p], lr=1e-3, master_weights=True), optim.SGD([q], lr=1e-3)
    for _ in range(100):
        for o in (kept, lost):
            o.zero_grad()
        (p.sum() + q.sum()).backward()
        for o in (kept, lost):
            o.step()
    np.testing.assert_allclose(kept.state[p]["master"].numpy(), 0.9, rtol=1e-5)
    assert p.tolist() == [0.8984375] * 3 and q.tolist() == [1.0] * 3
    other = optim.SGD([nn.Parameter(p.detach().clone())], lr=1e-3, master_weights=True)
    other.load_state_dict(kept.state_dict())
    assert other.state[other.param_groups[0]["params"][0]]["master"].dtype == holon.float32


def test_an_optimizer_of_ones_own():
    class SignSGD(optim.Optimizer):
        def __init__(self, params, lr):
            super().__init__(params, {"lr": lr})

        def step(self, closure=None):
            loss = closure() if closure else None
            with holon.no_grad():
                for group in self.param_groups:
                    for p in group["params"]:
                        if p.grad is None:
                            continue
                        state = self.state[p]
                        if not state:
                            state["step"], state["last"] = 0, holon.zeros_like(p)
                        state["step"] += 1
                        state["last"].copy_(p.grad)
                        p.sub_(p.grad / p.grad.abs() * group["lr"])
            return loss

    p = nn.Parameter(holon.tensor([1.0, -1.0]))
    optimizer = SignSGD([{"params": [p], "name": "all"}], 0.5)
    (p * p).sum().backward()
    optimizer.step()
    assert p.tolist() == [0.5, -0.5]
    other = SignSGD([nn.Parameter(holon.ones(2))], 0.1)
    other.load_state_dict(optimizer.state_dict())
    assert other.param_groups[0]["lr"] == 0.5
    state = next(iter(other.state.values()))
    assert state["step"] == 1 and state["last"].tolist() == [2.0, -2.0]


def test_closure_and_zero_grad():
    p = nn.Parameter(holon.tensor([2.0]))
    optimizer = optim.SGD([p], lr=0.25)

    def closure():
        optimizer.zero_grad(set_to_none=False)
        loss = (p * p).sum()
        loss.backward()
        return loss

    with holon.no_grad():
        assert optimizer.step(closure).item() == 4.0
    assert p.tolist() == [1.0]
    optimizer.zero_grad(set_to_none=False)
    assert p.grad.tolist() == [0.0]
    optimizer.zero_grad()
    assert p.grad is None


def test_clip_grad_of_groups():
    a, b = nn.Parameter(holon.zeros(2)), nn.Parameter(holon.zeros(2))
    optimizer = optim.AdamW([{"params": [a], "clip_grad_max_norm": 1.0, "clip_grad_norm_type": 1.0}, {"params": [b]}])
    ((a + b) * 3).sum().backward()
    optimizer.clip_grad()
    np.testing.assert_allclose(a.grad.numpy(), 0.5, rtol=1e-5)
    assert b.grad.tolist() == [3.0, 3.0]
    # Groups with the same limit have one norm, returned before; another limit is another norm.
    groups = [{"params": [a], "clip_grad_max_norm": 1.0}, {"params": [b], "clip_grad_max_norm": 1}]
    c = nn.Parameter(holon.zeros(1))
    optimizer = optim.SGD([*groups, {"params": [c], "clip_grad_max_norm": 2.0}])
    a.grad, b.grad, c.grad = holon.tensor([3.0, 0.0]), holon.tensor([0.0, 4.0]), holon.tensor([6.0])
    assert [n.item() for n in optimizer.clip_grad()] == [5.0, 6.0]
    np.testing.assert_allclose([a.grad[0].item(), b.grad[1].item(), c.grad[0].item()], [0.6, 0.8, 2.0], rtol=1e-6)
    with pytest.warns(UserWarning, match="clip_grad_max_norm"):
        optim.SGD([a]).clip_grad()


@pytest.mark.parametrize("p", [1.0, 2.0, 2.5, 0.0, math.inf, -math.inf])
def test_clip_norms_of_any_order(p):
    a, b = nn.Parameter(holon.zeros(2)), nn.Parameter(holon.zeros(1))
    a.grad, b.grad = holon.tensor([3.0, -4.0]), holon.tensor([-1.0])
    x = np.array([3.0, -4.0, -1.0])
    want = {0.0: 2.0, math.inf: 4.0, -math.inf: 1.0}.get(p) or np.linalg.norm(x, p)
    norm = nn.utils.clip_grad_norm_([a, b], 0.5, norm_type=p)
    assert norm.item() == pytest.approx(want)
    np.testing.assert_allclose(a.grad.numpy(), x[:2] * 0.5 / want, rtol=1e-4)


def test_the_norm_of_order_0_counts_gradients_as_pytorch_does():
    a, b = nn.Parameter(holon.zeros(2)), nn.Parameter(holon.zeros(1))
    a.grad, b.grad = holon.tensor([3.0, -4.0]), holon.zeros(1)
    assert nn.utils.clip_grad_norm_([a, b], 10.0, norm_type=0).item() == 1.0 and a.grad.tolist() == [3.0, -4.0]


def test_clip_values_and_nonfinite_norms():
    a = nn.Parameter(holon.zeros(3))
    a.grad = holon.tensor([3.0, -4.0, 0.5])
    nn.utils.clip_grad_value_(a, 2)
    assert a.grad.tolist() == [2.0, -2.0, 0.5]
    a.grad = holon.tensor([3.0, math.inf, 0.5])
    assert math.isinf(nn.utils.clip_grad_norm_(a, math.inf).item())
    with pytest.raises(RuntimeError, match="inf"):
        nn.utils.clip_grad_norm_(a, 1.0, error_if_nonfinite=True)
    with pytest.raises(ValueError, match="negative"):
        nn.utils.clip_grad_value_(a, -1)


def test_load_state_dict_names_what_differs():
    p = nn.Parameter(holon.ones(2))
    optimizer = optim.Adam([p])
    p.sum().backward()
    optimizer.step()
    good = optimizer.state_dict()
    with pytest.raises(ValueError, match="'param_groups'"):
        optimizer.load_state_dict({"state": {}})
    with pytest.raises(ValueError, match=r"hold \[1\] parameters, the optimizer's \[2\]"):
        optim.Adam([p, nn.Parameter(holon.ones(1))]).load_state_dict(good)
    with pytest.raises(ValueError, match="no option 'momentum'"):
        optim.SGD([p]).load_state_dict(good)
    with pytest.raises(ValueError, match="state 7"):
        optimizer.load_state_dict({**good, "state": {7: {}}})
    with pytest.raises(ValueError, match=r"exp_avg of parameter 0 is \[3\]"):
        optimizer.load_state_dict({**good, "state": {0: {"exp_avg": holon.ones(3)}}})
