"""Learning rates as functions of the step, and warm-up. Step s is the number of earlier calls of the train job."""

import math

__all__ = [
    "CosineScheduler",
    "CustomScheduler",
    "ExponentialScheduler",
    "InverseTimeScheduler",
    "LinearCosineScheduler",
    "NaturalExpScheduler",
    "PiecewiseConstantScheduler",
    "PiecewiseScalingScheduler",
    "PolynomialScheduler",
    "PolynomialSchduler",
    "warmup",
]


def _number(value, what):
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{what} is {value!r}; it must be a number.")
    return float(value)


def _steps(value, what):
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{what} is {value!r}; it must be an int of 1 or more.")
    return value


class LrScheduler:
    """A learning rate for every step: lr_at(step). During the steps of warmup that says what it is."""

    def __init__(self, base_lr, warmup=None):
        what = type(self).__name__
        if warmup is not None and not isinstance(warmup, _Warmup):
            raise TypeError(
                f"{what}: warmup is {warmup!r}; it must be optimizer.warmup.linear(...) or "
                "optimizer.warmup.constant(...)."
            )
        self.base_lr, self.warmup = _number(base_lr, f"{what}: the learning rate"), warmup

    def lr_at(self, step):
        """The learning rate of the call after so many others, as a float."""
        if self.warmup is not None and step < self.warmup.steps:
            return self.base_lr * self.warmup.factor(step)
        return self._rate(step)

    def _rate(self, step):
        raise NotImplementedError


class PiecewiseConstantScheduler(LrScheduler):
    """values[i] for the first i whose boundaries[i] the step has not passed (step <= boundary), else the last value."""

    def __init__(self, boundaries, values, warmup=None):
        boundaries, values = list(boundaries), list(values)
        assert len(values) == len(boundaries) + 1, (
            f"PiecewiseConstantScheduler: {len(boundaries)} boundaries need {len(boundaries) + 1} values; "
            f"found {len(values)}."
        )
        _rising(boundaries, "PiecewiseConstantScheduler")
        self.boundaries, self.values = boundaries, [_number(v, "PiecewiseConstantScheduler: a value") for v in values]
        super().__init__(self.values[0], warmup)

    def _rate(self, step):
        return next((v for b, v in zip(self.boundaries, self.values) if step <= b), self.values[-1])


def _rising(boundaries, what):
    if any(a >= b for a, b in zip(boundaries, boundaries[1:])):
        raise ValueError(f"{what}: the boundaries {boundaries} must rise.")


class PiecewiseScalingScheduler(LrScheduler):
    """base_lr up to the first boundary, then base_lr times the scale of the last boundary that was passed.
    A number is the scale of all."""

    def __init__(self, base_lr, boundaries, scale, warmup=None):
        boundaries = list(boundaries)
        scales = [scale] * len(boundaries) if isinstance(scale, (int, float)) else list(scale)
        assert len(scales) == len(boundaries), (
            f"PiecewiseScalingScheduler: {len(boundaries)} boundaries need as many scales, or one number; "
            f"found {len(scales)}."
        )
        _rising(boundaries, "PiecewiseScalingScheduler")
        self.boundaries, self.scales = (
            boundaries,
            [1.0] + [_number(s, "PiecewiseScalingScheduler: a scale") for s in scales],
        )
        super().__init__(base_lr, warmup)

    def _rate(self, step):
        return self.base_lr * next((s for b, s in zip(self.boundaries, self.scales) if step <= b), self.scales[-1])


class PolynomialScheduler(LrScheduler):
    """From base_lr to end_learning_rate in so many steps, by (1 - step / steps) to a power.
    cycle: then again, over ever more steps."""

    def __init__(self, base_lr, steps, end_learning_rate=0.0001, power=1.0, cycle=False, warmup=None):
        super().__init__(base_lr, warmup)
        self.steps = _steps(steps, f"{type(self).__name__}: steps")
        self.end, self.power, self.cycle = (
            _number(end_learning_rate, "end_learning_rate"),
            _number(power, "power"),
            bool(cycle),
        )

    def _rate(self, step):
        at, whole = min(step, self.steps), self.steps
        if self.cycle:
            at = max(step, 1)
            whole = self.steps * math.ceil(at / self.steps)
        return (self.base_lr - self.end) * (1 - at / whole) ** self.power + self.end


PolynomialSchduler = PolynomialScheduler


class CosineScheduler(LrScheduler):
    """From base_lr to alpha * base_lr in so many steps along half a wave of the cosine."""

    def __init__(self, base_lr, steps, alpha=0.0, warmup=None):
        super().__init__(base_lr, warmup)
        self.steps, self.alpha = _steps(steps, "CosineScheduler: steps"), _number(alpha, "CosineScheduler: alpha")

    def _rate(self, step):
        wave = 0.5 * (1 + math.cos(math.pi * min(step, self.steps) / self.steps))
        return self.base_lr * ((1 - self.alpha) * wave + self.alpha)


class LinearCosineScheduler(LrScheduler):
    """A line that falls to alpha in so many steps times num_periods waves of the cosine, plus beta;
    all times base_lr."""

    def __init__(self, base_lr, steps, num_periods=0.5, alpha=0.0, beta=0.001, warmup=None):
        super().__init__(base_lr, warmup)
        self.steps = _steps(steps, "LinearCosineScheduler: steps")
        self.periods, self.alpha, self.beta = (
            _number(v, "LinearCosineScheduler: an option") for v in (num_periods, alpha, beta)
        )

    def _rate(self, step):
        at = min(step, self.steps)
        line = (self.steps - at) / self.steps
        wave = 0.5 * (1 + math.cos(2 * math.pi * self.periods * at / self.steps))
        return self.base_lr * ((self.alpha + line) * wave + self.beta)


class _Decay(LrScheduler):
    """What falls by decay_rate in every so many steps; with staircase only at their ends."""

    def __init__(self, base_lr, steps, decay_rate, staircase=False, warmup=None):
        super().__init__(base_lr, warmup)
        what = type(self).__name__
        self.steps, self.decay_rate, self.staircase = (
            _steps(steps, f"{what}: steps"),
            _number(decay_rate, f"{what}: decay_rate"),
            bool(staircase),
        )

    def _rate(self, step):
        return self.base_lr * self._factor(step // self.steps if self.staircase else step / self.steps)


class ExponentialScheduler(_Decay):
    """base_lr * decay_rate ^ (step / steps)."""

    def _factor(self, at):
        return self.decay_rate**at


class InverseTimeScheduler(_Decay):
    """base_lr / (1 + decay_rate * step / steps)."""

    def _factor(self, at):
        return 1 / (1 + self.decay_rate * at)


class NaturalExpScheduler(_Decay):
    """base_lr * exp(-decay_rate * step / steps)."""

    def _factor(self, at):
        return math.exp(-self.decay_rate * at)


class CustomScheduler(LrScheduler):
    """What a function step -> learning rate says. A blob's name, as the older API takes, is not supported."""

    def __init__(self, lbn):
        if not callable(lbn):
            raise NotImplementedError(
                f"CustomScheduler: {lbn!r} names a blob of the job, which cannot be a learning rate here. "
                "Give a function step -> learning rate."
            )
        super().__init__(_number(lbn(0), "CustomScheduler: the learning rate"))
        self.function = lbn

    def _rate(self, step):
        return float(self.function(step))


# Warm-up


class _Warmup:
    """For the first steps the base learning rate times factor(step)."""

    def __init__(self, steps, start, rises, what):
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
            raise ValueError(f"{what}: steps is {steps!r}; it must be an int of 0 or more.")
        self.steps, self.start, self._rises = steps, _number(start, f"{what}: the multiplier"), rises

    def factor(self, step):
        return self.start + (1 - self.start) * step / self.steps if self._rises else self.start


class warmup:
    """Ways of beginning with other learning rates; the schedule goes on at the step that is then reached."""

    @staticmethod
    def linear(steps, start_multiplier):
        """From start_multiplier times the base learning rate to it, in so many steps."""
        return _Warmup(steps, start_multiplier, True, "warmup.linear")

    @staticmethod
    def constant(steps, multiplier):
        """multiplier times the base learning rate, for so many steps."""
        return _Warmup(steps, multiplier, False, "warmup.constant")
