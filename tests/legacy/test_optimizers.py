"""Optimizers against their rules in NumPy, step by step, on one rank and on two;
learning rates against their formulas."""

import math

import numpy as np
import oneflow as flow
import oneflow.typing as tp
import pytest
from oneflow.single_client import initializers
from oneflow.single_client import optimizer as o
from oneflow.single_client.train_conf import optimizer_of

B, S = flow.sbp.broadcast, flow.sbp.split
RATES = o.PiecewiseConstantScheduler([1, 3], [0.5, 0.1, 0.02])
NAMES = ("dense-weight", "dense-bias")
STEPS = 6


def array(*shape, seed):
    return np.random.default_rng(seed).normal(size=shape)


FIRST = {"dense-weight": array(4, 3, seed=1), "dense-bias": array(3, seed=2)}


def gradient(name, step):
    g = array(*FIRST[name].shape, seed=10 * step + len(name))
    if name == "dense-weight":
        g[step % 4] = 0  # a row that this step does not read
    return g


def by_holon(optimizer, sbps=None):
    """Variables and states after STEPS steps; sbps: of the variables, on the ranks that there are."""

    def place(value, name):
        where = {} if sbps is None else {"placement": flow.placement.all("cpu"), "sbp": sbps[name]}
        return flow.tensor(value, dtype=flow.float64, **where)

    def number(value):
        return flow.tensor(
            value, dtype=flow.float64, **({} if sbps is None else {"placement": flow.placement.all("cpu"), "sbp": B})
        )

    with flow.no_grad():
        ws = {n: place(FIRST[n], n) for n in NAMES}
        states = {n: optimizer.state_of(n, ws[n]) for n in NAMES}
        for step in range(STEPS):
            grads = [place(gradient(n, step), n) for n in NAMES]
            if optimizer.grad_clipping is not None:
                grads = optimizer.grad_clipping.apply(grads)
            entries = [(n, ws[n], g, states[n]) for n, g in zip(NAMES, grads)]
            optimizer.update(entries, number(optimizer.lr_at(step)), number(step + 1.0))
    return {
        **{n: w.numpy() for n, w in ws.items()},
        **{f"{n}-{k}": t.numpy() for n in NAMES for k, t in states[n].items()},
    }


def rms(x):
    return np.sqrt((x * x).mean())


def norm(x):
    return np.sqrt((x * x).sum())


def sgd(momentum, decay=lambda name: 0.0):
    def rule(name, w, g, s, lr, t):
        shrunk = lr * decay(name) * w
        if momentum == 0:
            return w - lr * g - shrunk
        s["momentum"] = momentum * s.get("momentum", 0) - lr * g
        return w + s["momentum"] - shrunk

    return rule


def adam(correct=False, b1=0.9, b2=0.999, eps=1e-8, decay=lambda name: 0.0, lazy=False):
    def rule(name, w, g, s, lr, t):
        m, v = s.get("m", np.zeros_like(w)), s.get("v", np.zeros_like(w))
        new_m, new_v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        if correct:
            lr = lr * math.sqrt(1 - b2**t) / (1 - b1**t)
        new_w = w - lr * (new_m / (np.sqrt(new_v) + eps) + decay(name) * w)
        if lazy and w.ndim == 2:
            for row in range(len(w)):
                if not g[row].any():
                    new_m[row], new_v[row], new_w[row] = m[row], v[row], w[row]
        s["m"], s["v"] = new_m, new_v
        return new_w

    return rule


def rmsprop(rate, eps, centered):
    def rule(name, w, g, s, lr, t):
        s["mean_square"] = rate * s.get("mean_square", 0) + (1 - rate) * g * g
        if centered:
            s["mean_gradient"] = rate * s.get("mean_gradient", 0) + (1 - rate) * g
        return w - lr * g / np.sqrt(s["mean_square"] - (s["mean_gradient"] ** 2 if centered else 0) + eps)

    return rule


def lars(beta, eps, coefficient):
    def rule(name, w, g, s, lr, t):
        local = lr * coefficient * rms(w) / (eps + rms(g))
        s["momentum"] = beta * s.get("momentum", 0) - local * g
        return w + s["momentum"]

    return rule


def lamb(b1, b2, eps):
    def rule(name, w, g, s, lr, t):
        s["m"], s["v"] = b1 * s.get("m", 0) + (1 - b1) * g, b2 * s.get("v", 0) + (1 - b2) * g * g
        u = s["m"] / (1 - b1**t) / np.sqrt(s["v"] / (1 - b2**t) + eps)
        return w - lr * norm(w) / norm(u) * u

    return rule


def by_numpy(rule, clip=None):
    ws, states = dict(FIRST), {n: {} for n in NAMES}
    for step in range(STEPS):
        lr = 0.5 if step <= 1 else 0.1 if step <= 3 else 0.02
        grads = {n: gradient(n, step) for n in NAMES}
        if clip is not None:
            whole = math.sqrt(sum((g * g).sum() for g in grads.values()))
            grads = {n: g * min(1, clip / whole) for n, g in grads.items()}
        ws = {n: rule(n, ws[n], grads[n], states[n], lr, step + 1) for n in NAMES}
    return {**ws, **{f"{n}-{k}": v for n in NAMES for k, v in states[n].items()}}


CASES = {
    "SGD": (o.SGD(RATES), sgd(0.9)),
    "SGD plain": (o.SGD(RATES, momentum=0), sgd(0)),
    "SGD clipped": (o.SGD(RATES, momentum=0.5, grad_clipping=o.grad_clipping.by_global_norm(1.0)), sgd(0.5), 1.0),
    "SGD not clipped": (o.SGD(RATES, grad_clipping=o.grad_clipping.by_global_norm(1e3)), sgd(0.9)),
    "SGDW": (o.SGDW(RATES, weight_decay=0.1), sgd(0.9, lambda n: 0.1)),
    "SGDW includes": (o.SGDW(RATES, momentum=0.0, weight_decay=0.1, weight_decay_includes="weight$"),
                      sgd(0, lambda n: 0.1 * ("weight" in n))),
    "Adam": (o.Adam(RATES), adam()),
    "Adam corrected": (o.Adam(RATES, 0.8, 0.99, 1e-3, do_bias_correction=True), adam(True, 0.8, 0.99, 1e-3)),
    "AdamW": (o.AdamW(RATES, weight_decay=0.2), adam(decay=lambda n: 0.2)),
    "AdamW excludes": (o.AdamW(RATES, do_bias_correction=True, weight_decay=0.2,
                               weight_decay_excludes=["bias", "norm"]),
                       adam(True, decay=lambda n: 0.2 * ("bias" not in n))),
    "AdamW without": (o.AdamW(RATES), adam()),
    "LazyAdam": (o.LazyAdam(RATES), adam(lazy=True)),
    "RMSProp": (o.RMSProp(RATES), rmsprop(0.99, 1e-8, False)),
    "RMSProp centered": (o.RMSProp(RATES, 0.8, 1e-3, centered=True), rmsprop(0.8, 1e-3, True)),
    "LARS": (o.LARS(RATES, lars_coefficient=0.1), lars(0.9, 1e-9, 0.1)),
    "LAMB": (o.LAMB(RATES), lamb(0.9, 0.999, 1e-6)),
}  # fmt: skip


def compare(found, expected):
    assert set(found) == set(expected)
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("name", CASES)
def test_rules(name):
    optimizer, rule, *clip = CASES[name]
    compare(by_holon(optimizer), by_numpy(rule, *clip))


@pytest.mark.parametrize("name", CASES)
def test_on_two_ranks(name):
    optimizer, rule, *clip = CASES[name]
    expected = by_numpy(rule, *clip)
    for weight, bias in ((B, B), (S(0), B), (S(1), S(0))):
        sbps = {"dense-weight": weight, "dense-bias": bias}
        for found in flow.run_ranks(2, lambda rank, sbps=sbps: by_holon(optimizer, sbps)):
            compare(found, expected)


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_in_jobs(devices):
    """All rules, each in a train job whose arguments are the gradients."""
    flow.clear_default_session()
    flow.config.gpu_device_num(devices)

    def job_of(number, optimizer):
        def body(gw, gb):
            total = None
            for name, g in zip(NAMES, (gw, gb)):
                w = flow.get_variable(f"{number}-{name}", FIRST[name].shape, initializer=Given(FIRST[name]))
                part = flow.math.reduce_sum(flow.math.multiply(w, g))
                total = part if total is None else flow.math.add(total, part)
            optimizer.minimize(total)
            return total

        def train_job(gw: tp.Numpy.Placeholder((4, 3)), gb: tp.Numpy.Placeholder((3,))) -> tp.Numpy:
            return body(gw, gb)

        train_job.__name__ = f"train_{number}"
        return flow.global_function(type="train")(train_job)

    class Given(initializers.Initializer):
        def __init__(self, values):
            self.values = values

        def fill(self, tensor, name, seed=None):
            with flow.no_grad():
                return tensor.copy_(
                    flow.tensor(self.values, dtype=tensor.dtype, placement=tensor.placement, sbp=tensor.sbp)
                )

    jobs = [job_of(number, case[0]) for number, case in enumerate(CASES.values())]
    for step in range(STEPS):
        for job in jobs:
            job(*(gradient(n, step).astype(np.float32) for n in NAMES))
    found = {name: v.numpy() for name, v in flow.get_all_variables().items()}
    flow.clear_default_session()
    for number, (_, rule, *clip) in enumerate(CASES.values()):
        for name, value in by_numpy(rule, *clip).items():
            np.testing.assert_allclose(
                found[f"{number}-{name}"], value, rtol=2e-4, atol=2e-5, err_msg=f"{list(CASES)[number]} {name}"
            )


def test_variables_of_two_scopes():
    """The norm for clipping is that of all gradients, wherever they are."""
    flow.clear_default_session()
    flow.config.gpu_device_num(2)
    optimizer = o.AdamW(
        RATES, do_bias_correction=True, weight_decay=0.1, grad_clipping=o.grad_clipping.by_global_norm(0.1)
    )

    @flow.global_function(type="train")
    def job(gw: tp.Numpy.Placeholder((4, 3)), gb: tp.Numpy.Placeholder((3,))) -> tp.Numpy:
        parts = []
        for name, g, device in zip(NAMES, (gw, gb), ("0:0", "0:1")):
            with flow.scope.placement("gpu", device):
                w = flow.get_variable(name, FIRST[name].shape, initializer=flow.zeros_initializer())
                parts.append(flow.math.reduce_sum(flow.math.multiply(w, g)))
        total = flow.math.add(*parts)
        optimizer.minimize(total)
        return total

    ws, states = {n: np.zeros_like(FIRST[n]) for n in NAMES}, {n: {} for n in NAMES}
    rule = adam(True, decay=lambda n: 0.1)
    for step in range(STEPS):
        job(*(gradient(n, step).astype(np.float32) for n in NAMES))
        whole = math.sqrt(sum((gradient(n, step) ** 2).sum() for n in NAMES))
        for n in NAMES:
            ws[n] = rule(n, ws[n], gradient(n, step) * 0.1 / whole, states[n], RATES.lr_at(step), step + 1)
    found = flow.get_all_variables()
    for n in NAMES:
        np.testing.assert_allclose(found[n].numpy(), ws[n], rtol=2e-4, atol=2e-5)
    flow.clear_default_session()


def test_lamb_of_a_zero_variable():
    w, g = flow.zeros(2, dtype=flow.float64), flow.tensor([1.0, -2.0], dtype=flow.float64)
    optimizer = o.LAMB(RATES, epsilon=0.0)
    optimizer.update([("w", w, g, optimizer.state_of("w", w))], flow.tensor(0.5), flow.tensor(1.0))
    np.testing.assert_allclose(w.numpy(), [-0.5, 0.5], rtol=1e-6)


def test_clipping_by_global_norm():
    clip = o.grad_clipping.by_global_norm(1.0)
    a, b = clip.apply([flow.tensor([3.0]), flow.tensor([[4.0, 0.0]])])
    np.testing.assert_allclose([*a.numpy(), *b.numpy()[0]], [0.6, 0.8, 0])
    np.testing.assert_allclose(clip.apply([flow.tensor([0.3])])[0].numpy(), [0.3], rtol=1e-6)
    np.testing.assert_allclose(clip.apply([flow.zeros(2)])[0].numpy(), [0, 0])
    assert clip.apply([]) == []


def test_loss_scales():
    static = o.loss_scale.static_loss_scale(128)
    assert (static.initial, static.is_dynamic, static.after(128.0, 5, False)) == (128.0, False, (128.0, 0))
    dynamic = o.loss_scale.dynamic_loss_scale(8.0, 2, 4.0)
    assert dynamic.is_dynamic
    assert dynamic.after(8.0, 0, True) == (8.0, 1)
    assert dynamic.after(8.0, 1, True) == (32.0, 0)
    assert dynamic.after(8.0, 1, False) == (2.0, 0)
    assert dynamic.after(2.0, 1, False) == (1.0, 0)
    assert o.SGD(RATES, loss_scale_factor=16).loss_scale.initial == 16
    assert o.SGD(RATES).loss_scale is None
    assert o.Adam(RATES, loss_scale_policy=dynamic).loss_scale is dynamic


# Learning rates


@pytest.mark.parametrize("scheduler, expected", [
    (o.PiecewiseConstantScheduler([], [0.1]), lambda s: 0.1),
    (o.PiecewiseConstantScheduler([3, 6], [0.1, 0.02, 0.03]), lambda s: 0.1 if s <= 3 else 0.02 if s <= 6 else 0.03),
    (o.PiecewiseScalingScheduler(0.5, [3, 6], [0.1, 0.2]), lambda s: 0.5 if s <= 3 else 0.05 if s <= 6 else 0.1),
    (o.PiecewiseScalingScheduler(0.5, [3, 6], 0.1), lambda s: 0.5 if s <= 3 else 0.05),
    (o.PolynomialSchduler(0.5, 10), lambda s: (0.5 - 0.0001) * (1 - min(s, 10) / 10) + 0.0001),
    (o.PolynomialScheduler(0.5, 8, 0.1, 2.0), lambda s: 0.4 * (1 - min(s, 8) / 8) ** 2 + 0.1),
    (o.PolynomialScheduler(0.5, 5, 0.0, 1.0, cycle=True),
     lambda s: 0.5 * (1 - max(s, 1) / (5 * math.ceil(max(s, 1) / 5)))),
    (o.CosineScheduler(0.5, 10, 0.1), lambda s: 0.5 * (0.9 * (1 + math.cos(math.pi * min(s, 10) / 10)) / 2 + 0.1)),
    (o.CosineScheduler(0.5, 10), lambda s: 0.25 * (1 + math.cos(math.pi * min(s, 10) / 10))),
    (o.LinearCosineScheduler(0.5, 10),
     lambda s: 0.5 * ((10 - min(s, 10)) / 10 * (1 + math.cos(math.pi * min(s, 10) / 10)) / 2 + 0.001)),
    (o.LinearCosineScheduler(2.0, 8, 1.0, 0.2, 0.1),
     lambda s: 2 * ((0.2 + (8 - min(s, 8)) / 8) * (1 + math.cos(2 * math.pi * min(s, 8) / 8)) / 2 + 0.1)),
    (o.ExponentialScheduler(0.5, 4, 0.9), lambda s: 0.5 * 0.9 ** (s / 4)),
    (o.ExponentialScheduler(0.5, 4, 0.9, staircase=True), lambda s: 0.5 * 0.9 ** (s // 4)),
    (o.InverseTimeScheduler(0.5, 4, 2), lambda s: 0.5 / (1 + 2 * s / 4)),
    (o.InverseTimeScheduler(0.5, 4, 2, True), lambda s: 0.5 / (1 + 2 * (s // 4))),
    (o.NaturalExpScheduler(0.5, 4, 0.3), lambda s: 0.5 * math.exp(-0.3 * s / 4)),
    (o.NaturalExpScheduler(0.5, 4, 0.3, staircase=True), lambda s: 0.5 * math.exp(-0.3 * (s // 4))),
    (o.CustomScheduler(lambda step: 1 / (1 + step)), lambda s: 1 / (1 + s)),
    (o.PiecewiseConstantScheduler([6], [0.4, 0.1], warmup=o.warmup.linear(4, 0.5)),
     lambda s: 0.4 * (0.5 + 0.5 * s / 4) if s < 4 else 0.4 if s <= 6 else 0.1),
    (o.CosineScheduler(0.5, 10, warmup=o.warmup.constant(3, 0.1)),
     lambda s: 0.05 if s < 3 else 0.25 * (1 + math.cos(math.pi * min(s, 10) / 10))),
    (o.ExponentialScheduler(0.5, 4, 0.9, warmup=o.warmup.linear(0, 0.5)), lambda s: 0.5 * 0.9 ** (s / 4)),
])  # fmt: skip
def test_schedules(scheduler, expected):
    for step in range(15):
        assert scheduler.lr_at(step) == pytest.approx(expected(step), rel=1e-12)
    assert o.SGD(scheduler).lr_at(7) == scheduler.lr_at(7)


@pytest.mark.parametrize("make, error, says", [
    (lambda: o.SGD(0.1), TypeError,
     r"the learning rate is 0.1; it must be a scheduler, such as PiecewiseConstantScheduler\(\[\], \[0.1\]\)"),
    (lambda: o.SGD(RATES, momentum="0.9"), TypeError, "SGD: momentum is '0.9'"),
    (lambda: o.SGD(RATES, momentum=-1), ValueError, "momentum is -1; it must be at least 0"),
    (lambda: o.SGD(RATES, grad_clipping=5.0), TypeError, "grad_clipping is 5.0"),
    (lambda: o.SGD(RATES, train_step_lbn="a/b"), NotImplementedError, "train_step_lbn"),
    (lambda: o.SGD(RATES, 2.0, loss_scale_policy=o.loss_scale.static_loss_scale(2.0)), ValueError, "not both"),
    (lambda: o.Adam(RATES, loss_scale_policy=3), TypeError, "loss_scale_policy is 3"),
    (lambda: o.Adam(RATES, beta1=1.0), ValueError, "beta1 is 1.0; it must be at least 0 and less than 1"),
    (lambda: o.Adam(RATES, epsilon=-1e-8), ValueError, "Adam: epsilon"),
    (lambda: o.AdamW(RATES, weight_decay=0.1, weight_decay_includes="a", weight_decay_excludes="b"), AssertionError,
     "not both"),
    (lambda: o.AdamW(RATES, weight_decay=0.1, weight_decay_includes="("), ValueError, "regular expression"),
    (lambda: o.RMSProp(RATES, decay_rate=2), ValueError, "decay_rate is 2"),
    (lambda: o.LAMB(RATES).minimize(None), TypeError, "minimize of LAMB: a loss is NoneType"),
    (lambda: o.LAMB(RATES).minimize([]), AssertionError, "there is no loss"),
    (lambda: o.SGD(RATES).minimize(flow.ones(1)), TypeError, "must be a blob"),
    (lambda: o.grad_clipping.by_global_norm(0), ValueError, "clip_norm is 0"),
    (lambda: o.loss_scale.static_loss_scale(0), ValueError, "the scale is 0"),
    (lambda: o.loss_scale.dynamic_loss_scale(increment_period=0), ValueError, "increment_period is 0"),
    (lambda: o.loss_scale.dynamic_loss_scale(multiplier=1.0), ValueError, "multiplier is 1.0"),
    (lambda: o.PiecewiseConstantScheduler([1], [0.1]), AssertionError, "1 boundaries need 2 values; found 1"),
    (lambda: o.PiecewiseConstantScheduler([3, 2], [0.1, 0.2, 0.3]), ValueError, r"\[3, 2\] must rise"),
    (lambda: o.PiecewiseScalingScheduler(0.1, [1, 2], [0.1]), AssertionError, "need as many scales"),
    (lambda: o.PolynomialSchduler(0.1, 0), ValueError, "steps is 0"),
    (lambda: o.CosineScheduler("0.1", 10), TypeError, "the learning rate is '0.1'"),
    (lambda: o.CosineScheduler(0.1, 10, warmup=3), TypeError, "warmup is 3"),
    (lambda: o.warmup.linear(-1, 0.1), ValueError, "steps is -1"),
    (lambda: o.CustomScheduler("net-lr/out"), NotImplementedError, "Give a function"),
])  # fmt: skip
def test_bad_options(make, error, says):
    with pytest.raises(error, match=says):
        make()


# The first versions' dicts


def test_train_conf():
    sgd = optimizer_of(0.1, dict(naive_conf={}))
    assert isinstance(sgd, o.SGD) and sgd.momentum == 0 and sgd.lr_at(9) == 0.1
    momentum = optimizer_of(0.1, dict(momentum_conf={"beta": 0.7}), 4.0)
    assert momentum.momentum == 0.7 and momentum.loss_scale.initial == 4
    settings = dict(
        adam_conf={"beta1": 0.8},
        learning_rate_decay={"exponential_conf": {"decay_batches": 5, "decay_rate": 0.5}},
        warmup_conf={"linear_conf": {"warmup_batches": 2, "start_multiplier": 0}},
        clip_conf={"clip_by_global_norm": {"clip_norm": 3.0}},
    )
    adam = optimizer_of(0.1, settings)
    assert isinstance(adam, o.Adam) and adam.beta1 == 0.8 and adam.grad_clipping.clip_norm == 3
    assert [adam.lr_at(s) for s in (0, 1, 5)] == pytest.approx([0, 0.05, 0.05])
    piecewise = dict(
        learning_rate_decay={"piecewise_constant_conf": {"boundaries": [2], "values": [0.3, 0.2]}}, lars_conf={}
    )
    assert [optimizer_of(0.1, piecewise).lr_at(s) for s in (2, 3)] == [0.3, 0.2]
    with pytest.raises(ValueError, match="must be a dict with one of naive_conf"):
        optimizer_of(0.1, {"sgd": {}})
    with pytest.raises(ValueError, match="adam_conf: the options"):
        optimizer_of(0.1, {"adam_conf": {"beta": 1}})
