"""Learning rate schedules against their closed forms."""

import math

import numpy as np
import pytest

import holon
from holon import nn, optim

S = optim.lr_scheduler


def make(lr=0.1, groups=1, **options):
    params = [{"params": [nn.Parameter(holon.ones(1))], "lr": lr * (i + 1)} for i in range(groups)]
    return optim.SGD(params, lr=lr, momentum=0.9, **options)


def rates(build, steps, group=0, **options):
    optimizer = make(**options)
    schedule, found = build(optimizer), []
    for _ in range(steps):
        found.append(optimizer.param_groups[group]["lr"])
        assert schedule.get_last_lr()[group] == found[-1]
        optimizer.step()
        schedule.step()
    return found


def cosine(base, low, done):
    return low + (base - low) * (1 + math.cos(math.pi * done)) / 2


def restarts(t):
    return t / 2 if t < 2 else (t - 2) / 4 if t < 6 else (t - 6) / 8


def one_cycle(t, linear):
    def go(a, b, done):
        return a + (b - a) * done if linear else cosine(a, b, done)

    return go(0.04, 1.0, t / 4.5) if t <= 4.5 else go(1.0, 0.04 / 1e4, (t - 4.5) / 5.5)


def triangle(t):
    at = t % 6
    return at / 2 if at <= 2 else (6 - at) / 4


CASES = [
    ("step", lambda o: S.StepLR(o, 2, 0.5), lambda t: 0.1 * 0.5 ** (t // 2)),
    ("multi_step", lambda o: S.MultiStepLR(o, [5, 2], 0.5), lambda t: 0.1 * 0.5 ** ((t >= 2) + (t >= 5))),
    ("exponential", lambda o: S.ExponentialLR(o, 0.9), lambda t: 0.1 * 0.9**t),
    ("constant", lambda o: S.ConstantLR(o, 0.25, 3), lambda t: 0.1 * (0.25 if t < 3 else 1)),
    ("linear", lambda o: S.LinearLR(o, 0.2, 1.0, 4), lambda t: 0.1 * (0.2 + 0.8 * min(t, 4) / 4)),
    ("cosine", lambda o: S.CosineAnnealingLR(o, 6, 0.01), lambda t: cosine(0.1, 0.01, t / 6)),
    ("cosine_decay", lambda o: S.CosineDecayLR(o, 6, 0.1), lambda t: cosine(0.1, 0.01, min(t, 6) / 6)),
    ("restarts", lambda o: S.CosineAnnealingWarmRestarts(o, 2, 2, 0.01), lambda t: cosine(0.1, 0.01, restarts(t))),
    ("polynomial", lambda o: S.PolynomialLR(o, 5, 0.01, 2.0), lambda t: 0.09 * (1 - min(t, 5) / 5) ** 2 + 0.01),
    (
        "polynomial_names",
        lambda o: S.PolynomialLR(o, decay_batch=5, power=2),
        lambda t: 0.0999 * (1 - min(t, 5) / 5) ** 2 + 0.0001,
    ),
    ("polynomial_torch", lambda o: S.PolynomialLR(o, total_iters=5, power=2), lambda t: 0.1 * (1 - min(t, 5) / 5) ** 2),
    (
        "polynomial_cycle",
        lambda o: S.PolynomialLR(o, 4, 0.01, cycle=True),
        lambda t: 0.09 * (1 - max(1, t) / (4 * math.ceil(max(1, t) / 4))) + 0.01,  # step 0 counts as 1
    ),
    ("lambda", lambda o: S.LambdaLR(o, lambda t: 1 / (t + 1)), lambda t: 0.1 / (t + 1)),
    (
        "multiplicative",
        lambda o: S.MultiplicativeLR(o, lambda t: 0.9 if t < 3 else 0.5),
        lambda t: 0.1 * 0.9 ** min(t, 2) * 0.5 ** max(t - 2, 0),
    ),
    ("warm_up", lambda o: S.WarmUpLR(o, 0.1, 3), lambda t: 0.1 * (0.1 + 0.9 * min(t, 3) / 3)),
    (
        "warm_up_constant",
        lambda o: S.WarmupLR(S.StepLR(o, 4, 0.5), 0.1, 2, "constant"),
        lambda t: 0.1 * (0.5 ** (t // 4) if t >= 2 else 0.1),
    ),
    # The line ends where the cosine goes on.
    (
        "warm_up_cosine",
        lambda o: S.WarmupLR(S.CosineDecayLR(o, 8), 0.5, 2),
        lambda t: cosine(0.1, 0, min(t, 8) / 8) if t >= 2 else 0.05 + (cosine(0.1, 0, 2 / 8) - 0.05) * t / 2,
    ),
    (
        "warm_up_prefix",
        lambda o: S.WarmupLR(S.CosineDecayLR(o, 8), 0.5, 2, warmup_prefix=True),
        lambda t: cosine(0.1, 0, min(t - 2, 8) / 8) if t >= 2 else 0.05 + 0.05 * t / 2,
    ),
    ("one_cycle", lambda o: S.OneCycleLR(o, 1.0, total_steps=11, pct_start=0.5), lambda t: one_cycle(t, False)),
    (
        "one_cycle_linear",
        lambda o: S.OneCycleLR(o, 1.0, epochs=1, steps_per_epoch=11, pct_start=0.5, anneal_strategy="linear"),
        lambda t: one_cycle(t, True),
    ),
    ("cyclic", lambda o: S.CyclicLR(o, 0.1, 0.5, 2, 4), lambda t: 0.1 + 0.4 * triangle(t)),
    (
        "cyclic_2",
        lambda o: S.CyclicLR(o, 0.1, 0.5, 2, 4, "triangular2"),
        lambda t: 0.1 + 0.4 * triangle(t) / 2 ** (t // 6),
    ),
    (
        "cyclic_exp",
        lambda o: S.CyclicLR(o, 0.1, 0.5, 2, 4, "exp_range", 0.9),
        lambda t: 0.1 + 0.4 * triangle(t) * 0.9**t,
    ),
    (
        "cyclic_own",
        lambda o: S.CyclicLR(o, 0.1, 0.5, 2, 4, scale_fn=lambda c: 1 / c),
        lambda t: 0.1 + 0.4 * triangle(t) / (t // 6 + 1),
    ),
    (
        "sequential",
        lambda o: S.SequentialLR(o, [S.ConstantLR(o, 0.1, 100), S.ExponentialLR(o, 0.9)], [2], interval_rescaling=True),
        lambda t: 0.01 if t < 2 else 0.1 * 0.9 ** (t - 2),
    ),
    (
        "sequential_one_clock",
        lambda o: S.SequentialLR(o, [S.ConstantLR(o, 0.1, 100), S.ExponentialLR(o, 0.9)], [2]),
        lambda t: 0.01 if t < 2 else 0.1 * 0.9**t,
    ),
    (
        "chained",
        lambda o: S.ChainedScheduler([S.ConstantLR(o, 0.1, 2), S.ExponentialLR(o, 0.9)]),
        lambda t: 0.1 * (0.1 if t < 2 else 1) * 0.9**t,
    ),
]


@pytest.mark.parametrize("build, expected", [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_closed_form(build, expected):
    np.testing.assert_allclose(rates(build, 10), [expected(t) for t in range(10)], rtol=1e-12)


@pytest.mark.parametrize("build", [c[1] for c in CASES], ids=[c[0] for c in CASES])
def test_goes_on_where_it_was(build):
    first, second = make(), make()
    schedule, other = build(first), build(second)
    for _ in range(4):
        schedule.step()
    other.load_state_dict(schedule.state_dict())
    for _ in range(3):
        assert other.get_last_lr() == pytest.approx(schedule.get_last_lr(), rel=1e-15)
        assert other.last_step == other.last_epoch == schedule.last_step
        schedule.step()
        other.step()


def test_groups_keep_their_ratio():
    assert rates(lambda o: S.WarmupLR(S.StepLR(o, 3), 0.5, 2), 5, group=1, groups=2) == pytest.approx(
        [2 * r for r in rates(lambda o: S.WarmupLR(S.StepLR(o, 3), 0.5, 2), 5)]
    )
    found = rates(lambda o: S.LambdaLR(o, [lambda t: 1, lambda t: t]), 3, group=1, groups=2)
    assert found == pytest.approx([0, 0.2, 0.4])


def test_schedules_one_after_the_other_multiply():
    optimizer = make()
    a, b = S.ExponentialLR(optimizer, 0.9), S.StepLR(optimizer, 2, 0.1)
    for t in range(6):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.9**t * 0.1 ** (t // 2))
        a.step()
        b.step()


def test_momentum_goes_the_other_way():
    optimizer = make()
    schedule = S.OneCycleLR(optimizer, 1.0, total_steps=11, pct_start=0.5)
    momenta = [optimizer.param_groups[0]["momentum"]]
    for _ in range(10):
        schedule.step()
        momenta.append(optimizer.param_groups[0]["momentum"])
    assert momenta[0] == pytest.approx(0.95) and momenta[-1] == pytest.approx(0.95) and min(momenta) < 0.86
    adam = optim.Adam([nn.Parameter(holon.ones(1))], lr=0.1)
    schedule = S.CyclicLR(adam, 0.1, 0.5, 2)
    assert adam.param_groups[0]["betas"] == (0.9, 0.999)
    schedule.step()
    schedule.step()
    assert adam.param_groups[0]["betas"] == pytest.approx((0.8, 0.999))


def test_plateau():
    optimizer = make(groups=2)
    schedule = S.ReduceLROnPlateau(optimizer, factor=0.5, patience=1, cooldown=1, min_lr=[0.03, 0.0])
    found = []
    for metric in [1.0, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.5, holon.tensor(0.5)]:
        schedule.step(metric)
        found.append(optimizer.param_groups[0]["lr"])
    # Two bad steps, one to cool down, two bad ones again; then 0.025 would be below the least.
    assert found == pytest.approx([0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.03, 0.03, 0.03, 0.03])
    assert schedule.best == 0.5 and schedule.num_bad_epochs == 1
    other = S.ReduceLROnPlateau(make(groups=2), factor=0.5, patience=1)
    assert other.best == math.inf
    other.load_state_dict(schedule.state_dict())
    assert other.best == 0.5 and other.last_epoch == 10
    rising = S.ReduceLROnPlateau(make(), "max", patience=0, threshold=0.1, threshold_mode="abs")
    for metric in (1.0, 1.05):
        rising.step(metric)
    assert rising.get_last_lr() == pytest.approx([0.01])


def test_a_schedule_of_ones_own():
    class Torch(S.LRScheduler):
        def get_lr(self):
            return [base / (1 + self.last_epoch) for base in self.base_lrs]

    class OneFlow(S.LRScheduler):
        def get_lr(self, base_lr, step):
            return base_lr / (1 + step)

    class Short(S.LRScheduler):
        def factor(self, step):
            return 1 / (1 + step)

    for schedule in (Torch, OneFlow, Short):
        assert rates(schedule, 4) == pytest.approx([0.1 / (1 + t) for t in range(4)])


def test_mistakes_are_named():
    o = make()
    for build, text in [
        (lambda: S.StepLR(o, 0), "step_size is 0"),
        (lambda: S.CosineDecayLR(o, 0), "decay_steps is 0"),
        (lambda: S.PolynomialLR(o), "one of steps"),
        (lambda: S.WarmupLR(o, warmup_method="x"), "warmup_method"),
        (lambda: S.SequentialLR(o, [S.ExponentialLR(o, 0.9)], [1]), "0 milestones"),
        (lambda: S.ChainedScheduler([]), "at least one"),
        (lambda: S.OneCycleLR(o, 1.0), "total_steps"),
        (lambda: S.CyclicLR(o, 0.1, 1, mode="x"), "mode"),
        (lambda: S.LambdaLR(o, [abs, abs]), "2 values for 1 groups"),
        (lambda: S.ReduceLROnPlateau(o, factor=1), "factor"),
        (lambda: S.ChainedScheduler([S.ExponentialLR(o, 0.9), S.ExponentialLR(make(), 0.9)]), "another optimizer"),
        (lambda: S.StepLR(o, 1).load_state_dict({"last_step": 1}), "base_lrs"),
        (lambda: S.StepLR(o, 1).load_state_dict(S.LinearLR(o).state_dict()), "has no"),
    ]:
        with pytest.raises(ValueError, match=text):
            build()
    with pytest.raises(TypeError, match="takes an optimizer"):
        S.StepLR(3, 1)
    with pytest.raises(KeyError, match="initial_lr"):
        S.StepLR(make(), 1, last_epoch=3)
    schedule = S.OneCycleLR(make(), 1.0, total_steps=2)
    schedule.step()
    schedule.step()
    with pytest.raises(ValueError, match="step 3 of 2"):
        schedule.step()
