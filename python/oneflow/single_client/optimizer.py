"""flow.optimizer of the older API: what a train job does once in each call, gradient clipping and loss scales.

The session averages the gradients, divides by the loss scale, adds regularizers and clips; then update() changes
variables and their states in place, by the update rules of holon.optim. Here are OneFlow's names and defaults, and in
what its formulas differ.
"""

import math
import re

from holon import _C

from . import schedulers
from .axes import on_placement_of
from .blob import Blob
from .schedulers import *  # noqa: F403

_ops = _C.ops

__all__ = [
    *schedulers.__all__,
    "Adam",
    "AdamW",
    "LAMB",
    "LARS",
    "LazyAdam",
    "RMSProp",
    "SGD",
    "SGDW",
    "grad_clipping",
    "loss_scale",
]


def _number(value, what, low=None, below=None):
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{what} is {value!r}; it must be a number.")
    if low is not None and value < low or below is not None and value >= below:
        limits = f"at least {low}" + (f" and less than {below}" if below is not None else "")
        raise ValueError(f"{what} is {value}; it must be {limits}.")
    return float(value)


# Gradient clipping and loss scales


class ByGlobalNorm:
    """Scales all gradients so that their common norm is at most clip_norm."""

    def __init__(self, clip_norm):
        self.clip_norm = _number(clip_norm, "grad_clipping.by_global_norm: clip_norm", 0)
        if self.clip_norm == 0:
            raise ValueError("grad_clipping.by_global_norm: clip_norm is 0; it must be more.")

    def apply(self, grads):
        """Returns the gradients, scaled."""
        grads = list(grads)
        if not grads:
            return grads
        squares = [_ops["sum"](_ops["square"](g)) for g in grads]
        total = squares[0]
        for s in squares[1:]:
            total = total + on_placement_of(s, total)
        factor = _ops["clamp"](self.clip_norm * _ops["rsqrt"](total), None, 1.0)
        return [g * on_placement_of(factor, g) for g in grads]


class grad_clipping:
    """Ways of clipping gradients."""

    @staticmethod
    def by_global_norm(clip_norm):
        """All gradients times min(1, clip_norm / their common norm)."""
        return ByGlobalNorm(clip_norm)


class LossScale:
    """What a loss is multiplied by before the gradients are taken, and they are divided by.
    increment_period None: it never changes."""

    def __init__(self, initial, increment_period=None, multiplier=1.0):
        self.initial = _number(initial, "loss_scale: the scale", 0)
        if self.initial == 0:
            raise ValueError("loss_scale: the scale is 0; it must be more.")
        self.increment_period, self.multiplier = increment_period, multiplier

    @property
    def is_dynamic(self):
        return self.increment_period is not None

    def after(self, scale, good_steps, finite):
        """(scale, good_steps) for the next step: larger after increment_period steps of finite gradients,
        less after one that was not."""
        if not self.is_dynamic:
            return scale, 0
        if not finite:
            return max(1.0, scale / self.multiplier), 0
        return (scale * self.multiplier, 0) if good_steps + 1 >= self.increment_period else (scale, good_steps + 1)


class loss_scale:
    """Ways of scaling losses, so that small gradients keep their digits in float16."""

    @staticmethod
    def static_loss_scale(loss_scale_factor):
        """One factor for all steps."""
        return LossScale(loss_scale_factor)

    @staticmethod
    def dynamic_loss_scale(initial_loss_scale=2**15, increment_period=2000, multiplier=2.0):
        """A factor that grows by multiplier after so many steps of finite gradients,
        and shrinks after one that has others."""
        if isinstance(increment_period, bool) or not isinstance(increment_period, int) or increment_period < 1:
            raise ValueError(
                f"dynamic_loss_scale: increment_period is {increment_period!r}; it must be an int of 1 or more."
            )
        if _number(multiplier, "dynamic_loss_scale: multiplier") <= 1:
            raise ValueError(f"dynamic_loss_scale: multiplier is {multiplier}; it must be more than 1.")
        return LossScale(initial_loss_scale, increment_period, float(multiplier))


# Optimizers


class Optimizer:
    """What all optimizers share. scheduler.lr_at(step) is the learning rate; _rule is the update rule, and _states are
    the names of its states by those that they have as variables."""

    _rule = ""
    _states: dict[str, str] = {}

    def __init__(
        self, lr_scheduler, loss_scale_factor=None, grad_clipping=None, train_step_lbn=None, loss_scale_policy=None
    ):
        what = type(self).__name__
        if not isinstance(lr_scheduler, schedulers.LrScheduler):
            raise TypeError(
                f"{what}: the learning rate is {lr_scheduler!r}; "
                "it must be a scheduler, such as PiecewiseConstantScheduler([], [0.1])."
            )
        if grad_clipping is not None and not hasattr(grad_clipping, "apply"):
            raise TypeError(
                f"{what}: grad_clipping is {grad_clipping!r}; it must be optimizer.grad_clipping.by_global_norm(...)."
            )
        if loss_scale_policy is not None and not isinstance(loss_scale_policy, LossScale):
            raise TypeError(f"{what}: loss_scale_policy is {loss_scale_policy!r}; it must be of optimizer.loss_scale.")
        if loss_scale_factor is not None and loss_scale_policy is not None:
            raise ValueError(f"{what}: give loss_scale_factor or loss_scale_policy, not both.")
        if train_step_lbn is not None:
            raise NotImplementedError(
                f"{what}: train_step_lbn names a blob that counts steps, which is not supported. Leave it out."
            )
        self.scheduler, self.grad_clipping = lr_scheduler, grad_clipping
        self.loss_scale = loss_scale_policy if loss_scale_factor is None else LossScale(loss_scale_factor)

    def minimize(self, loss):
        """Makes the job a step of training: each call updates the variables that the loss,
        or the sum of a list of losses, depends on."""
        losses = list(loss) if isinstance(loss, (list, tuple)) else [loss]
        for one in losses:
            if not isinstance(one, Blob):
                raise TypeError(
                    f"minimize of {type(self).__name__}: a loss is {type(one).__name__}; it must be a blob of the job."
                )
        assert losses, f"minimize of {type(self).__name__}: there is no loss."
        for one in losses[1:]:
            assert tuple(one.shape) == tuple(losses[0].shape) and one.dtype == losses[0].dtype, (
                f"minimize of {type(self).__name__}: losses must have equal shapes and dtypes; "
                f"found {losses[0]!r} and {one!r}."
            )
        from . import job

        job.current("minimize").set_train_step(self, losses)

    def lr_at(self, step):
        """The learning rate of the call after so many others."""
        return self.scheduler.lr_at(step)

    def state_of(self, name, w):
        """What is kept for a variable from call to call: a dict from suffixes to first values, distributed like it."""
        w = w.detach()
        return {suffix: _C.optimizer_state_like(self._rule, {}, w, _ops["zeros_like"](w)) for suffix in self._states}

    def update(self, entries, lr, t):
        """Changes variables and states in place. entries: (name, w, grad, states); lr, and t, the number of this call
        from 1 on: numbers."""
        groups = {}  # by the weight decay, which is an option of the rule
        for name, w, grad, states in entries:
            w.grad = self._gradient(w, grad)
            kept = {"step": int(t) - 1, **{of_rule: states[suffix] for suffix, of_rule in self._states.items()}}
            variables, all_kept = groups.setdefault(self._decay_of(name), ([], []))
            variables.append(w)
            all_kept.append(kept)
        for decay, (variables, all_kept) in groups.items():
            options = {**self._options(float(lr), int(t)), "weight_decay": decay}
            _C.optimizer_step(self._rule, variables, all_kept, options)
            for w in variables:
                w.grad = None

    def _options(self, lr, t):
        """The rule's options for the call."""
        raise NotImplementedError

    def _gradient(self, w, g):
        """What the rule takes for the gradient."""
        return g

    def _decay_of(self, name):
        """The rule's weight decay for a variable."""
        return 0.0


class SGD(Optimizer):
    """m = momentum * m - lr * g; w += m. Note that momentum is 0.9 unless given."""

    _rule = "sgd:lr_in_momentum"

    def __init__(
        self,
        lr_scheduler,
        loss_scale_factor=None,
        momentum=0.9,
        grad_clipping=None,
        train_step_lbn=None,
        loss_scale_policy=None,
    ):
        super().__init__(lr_scheduler, loss_scale_factor, grad_clipping, train_step_lbn, loss_scale_policy)
        self.momentum = _number(momentum, f"{type(self).__name__}: momentum", 0)
        self._states = {"momentum": "momentum_buffer"} if self.momentum else {}

    def _options(self, lr, t):
        return {"lr": lr, "momentum": self.momentum}


class _WeightDecay:
    """Which variables shrink, and how much: those whose names one of the patterns of includes is found in,
    or none of excludes."""

    def __init__(self, what, weight_decay, includes, excludes):
        assert includes is None or excludes is None, (
            f"{what}: give weight_decay_includes or weight_decay_excludes, not both."
        )
        self.rate = 0.0 if weight_decay is None else _number(weight_decay, f"{what}: weight_decay", 0)
        self._excluded = excludes is not None
        patterns = includes if includes is not None else excludes
        patterns = None if patterns is None else [patterns] if isinstance(patterns, str) else list(patterns)
        try:
            self._patterns = patterns and [re.compile(p) for p in patterns]
        except (re.error, TypeError) as error:
            raise ValueError(f"{what}: {patterns!r} must be a regular expression or a list of such: {error}.") from None
        self._any = patterns is None

    def of(self, name):
        """The rate for a variable."""
        if self._any or any(p.search(name) for p in self._patterns or ()) != self._excluded:
            return self.rate
        return 0.0


class SGDW(SGD):
    """SGD whose variables also shrink by lr * weight_decay * w."""

    def __init__(
        self,
        lr_scheduler,
        loss_scale_factor=None,
        momentum=0.9,
        weight_decay=None,
        weight_decay_includes=None,
        weight_decay_excludes=None,
        grad_clipping=None,
        train_step_lbn=None,
        loss_scale_policy=None,
    ):
        super().__init__(lr_scheduler, loss_scale_factor, momentum, grad_clipping, train_step_lbn, loss_scale_policy)
        self._decay = _WeightDecay("SGDW", weight_decay, weight_decay_includes, weight_decay_excludes)

    def update(self, entries, lr, t):
        # The rule of SGD adds its decay to the gradient, which would go through the momentum.
        for name, w, _, _ in entries:
            if rate := self._decay.of(name):
                w.mul_(1 - float(lr) * rate)
        super().update(entries, lr, t)


class Adam(Optimizer):
    """w -= lr * m / (sqrt(v) + epsilon), with running means m of g and v of g * g.
    do_bias_correction: with lr * sqrt(1 - beta2^t) / (1 - beta1^t) in place of lr."""

    _rule = "adam"
    _states = {"m": "exp_avg", "v": "exp_avg_sq"}

    def __init__(
        self,
        lr_scheduler,
        beta1=0.9,
        beta2=0.999,
        epsilon=1e-8,
        do_bias_correction=False,
        loss_scale_factor=None,
        grad_clipping=None,
        train_step_lbn=None,
        loss_scale_policy=None,
    ):
        super().__init__(lr_scheduler, loss_scale_factor, grad_clipping, train_step_lbn, loss_scale_policy)
        what = type(self).__name__
        self.beta1, self.beta2 = (_number(b, f"{what}: {w}", 0, 1) for b, w in ((beta1, "beta1"), (beta2, "beta2")))
        self.epsilon, self.do_bias_correction = _number(epsilon, f"{what}: epsilon", 0), bool(do_bias_correction)

    def _options(self, lr, t):
        # Unlike the correction of the rule, this one leaves epsilon as it is.
        if self.do_bias_correction:
            lr *= math.sqrt(1 - self.beta2**t) / (1 - self.beta1**t)
        return {
            "lr": lr,
            "betas": (self.beta1, self.beta2),
            "eps": self.epsilon,
            "do_bias_correction": False,
            "decoupled": True,
        }


class AdamW(Adam):
    """w -= lr * (m / (sqrt(v) + epsilon) + weight_decay * w), otherwise as Adam."""

    def __init__(
        self,
        lr_scheduler,
        beta1=0.9,
        beta2=0.999,
        epsilon=1e-8,
        do_bias_correction=False,
        loss_scale_factor=None,
        weight_decay=None,
        weight_decay_includes=None,
        weight_decay_excludes=None,
        grad_clipping=None,
        train_step_lbn=None,
        loss_scale_policy=None,
    ):
        super().__init__(
            lr_scheduler,
            beta1,
            beta2,
            epsilon,
            do_bias_correction,
            loss_scale_factor,
            grad_clipping,
            train_step_lbn,
            loss_scale_policy,
        )
        self._decay = _WeightDecay("AdamW", weight_decay, weight_decay_includes, weight_decay_excludes)

    def _decay_of(self, name):
        return self._decay.of(name)


class LazyAdam(Adam):
    """Adam for tables of which a step reads few rows:
    rows without a gradient, and their running means, stay as they are."""

    def __init__(
        self,
        lr_scheduler,
        beta1=0.9,
        beta2=0.999,
        epsilon=1e-8,
        loss_scale_factor=None,
        grad_clipping=None,
        train_step_lbn=None,
        loss_scale_policy=None,
    ):
        super().__init__(
            lr_scheduler,
            beta1,
            beta2,
            epsilon,
            False,
            loss_scale_factor,
            grad_clipping,
            train_step_lbn,
            loss_scale_policy,
        )

    def update(self, entries, lr, t):
        # The rule changes all rows; those without a gradient are put back.
        all_kept = [(w, *states.values()) for _, w, _, states in entries]
        before = [[x.detach().clone() for x in kept] for kept in all_kept]
        super().update(entries, lr, t)
        for (_, _, g, _), kept, old in zip(entries, all_kept, before):
            touched = g != 0
            if g.ndim > 1:
                touched = _ops["any"](touched, list(range(1, g.ndim)), True)
            for x, y in zip(kept, old):
                x.copy_(_ops["where"](touched, x, y))


class RMSProp(Optimizer):
    """w -= lr * g / sqrt(q + epsilon), with a running mean q of g * g; centered: less the square of that of g."""

    _rule = "rmsprop:eps_in_root"

    def __init__(
        self,
        lr_scheduler,
        decay_rate=0.99,
        epsilon=1e-8,
        centered=False,
        loss_scale_factor=None,
        grad_clipping=None,
        train_step_lbn=None,
        loss_scale_policy=None,
    ):
        super().__init__(lr_scheduler, loss_scale_factor, grad_clipping, train_step_lbn, loss_scale_policy)
        self.decay_rate = _number(decay_rate, "RMSProp: decay_rate", 0, 1)
        self.epsilon, self.centered = _number(epsilon, "RMSProp: epsilon", 0), bool(centered)
        self._states = {"mean_square": "square_avg", **({"mean_gradient": "grad_avg"} if self.centered else {})}

    def _options(self, lr, t):
        return {"lr": lr, "alpha": self.decay_rate, "eps": self.epsilon, "centered": self.centered}


class LARS(SGD):
    """SGD with momentum whose rate is, for each variable, lr * lars_coefficient * |w| / (epsilon + |g|);
    norms are root mean squares."""

    def __init__(
        self,
        lr_scheduler,
        momentum_beta=0.9,
        epsilon=1e-9,
        lars_coefficient=0.0001,
        loss_scale_factor=None,
        grad_clipping=None,
        train_step_lbn=None,
        loss_scale_policy=None,
    ):
        momentum = _number(momentum_beta, "LARS: momentum_beta", 0)
        super().__init__(lr_scheduler, loss_scale_factor, momentum, grad_clipping, train_step_lbn, loss_scale_policy)
        self.momentum_beta, self.epsilon = momentum, _number(epsilon, "LARS: epsilon", 0)
        self.lars_coefficient = _number(lars_coefficient, "LARS: lars_coefficient", 0)

    def _gradient(self, w, g):
        # Not the rule of LARS: its norms are sums, its momentum is without lr, and a variable of zeros moves by lr * g.
        of_w, of_g = (_ops["sqrt"](_ops["mean"](_ops["square"](x))) for x in (w, g))
        return g * (of_w * self.lars_coefficient / (of_g + self.epsilon))


class LAMB(Adam):
    """Steps u = m' / sqrt(v' + epsilon) with means m', v' that are corrected for their start,
    scaled for each variable by |w| / |u|."""

    _rule = "lamb:eps_in_root"

    def __init__(
        self,
        lr_scheduler,
        beta1=0.9,
        beta2=0.999,
        epsilon=1e-6,
        loss_scale_factor=None,
        grad_clipping=None,
        train_step_lbn=None,
        loss_scale_policy=None,
    ):
        super().__init__(
            lr_scheduler,
            beta1,
            beta2,
            epsilon,
            True,
            loss_scale_factor,
            grad_clipping,
            train_step_lbn,
            loss_scale_policy,
        )

    def _options(self, lr, t):
        return {"lr": lr, "betas": (self.beta1, self.beta2), "eps": self.epsilon}
