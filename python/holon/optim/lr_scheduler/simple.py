"""Schedules that are one formula of the step."""

import types

from .base import LRScheduler, at_least_one, formulas, per_group


class LambdaLR(LRScheduler):
    """The base rate times lr_lambda(step); a list gives each group its own function.
    Example: schedule = lr_scheduler.LambdaLR(optimizer, lambda step: 0.9 ** step)"""

    def __init__(self, optimizer, lr_lambda, last_step=-1, verbose=False, *, last_epoch=None):
        self.lr_lambdas = per_group("LambdaLR", optimizer, lr_lambda)
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def get_lr(self, base_lr, step):
        return base_lr * self.lr_lambdas[0](step)

    def _group_lr(self, index, base_lr):
        return base_lr * self.lr_lambdas[index](self.last_step)

    def state_dict(self):
        # Functions that are objects have attributes to save.
        own = [
            None if isinstance(f, types.FunctionType) else dict(vars(f)) if hasattr(f, "__dict__") else None
            for f in self.lr_lambdas
        ]
        return {**super().state_dict(), "lr_lambdas": own}

    def load_state_dict(self, state_dict):
        state = dict(state_dict)
        for function, own in zip(self.lr_lambdas, state.pop("lr_lambdas", ())):
            if own is not None:
                vars(function).update(own)
        super().load_state_dict(state)


class MultiplicativeLR(LambdaLR):
    """Multiplied by lr_lambda(step) at every step from 1 on.
    Example: schedule = lr_scheduler.MultiplicativeLR(optimizer, lambda step: 0.9)"""

    def __init__(self, optimizer, lr_lambda, last_step=-1, verbose=False, *, last_epoch=None):
        self._factors = {}
        super().__init__(optimizer, lr_lambda, last_step, verbose, last_epoch=last_epoch)

    def _factor(self, index, step):
        # The product up to a step is kept, so that each step asks the function once.
        at, product = self._factors.get(index, (0, 1.0))
        if step < at:
            at, product = 0, 1.0
        for t in range(at + 1, step + 1):
            product *= self.lr_lambdas[index](t)
        self._factors[index] = step, product
        return product

    def get_lr(self, base_lr, step):
        return base_lr * self._factor(0, step)

    def _group_lr(self, index, base_lr):
        return base_lr * self._factor(index, self.last_step)


class StepLR(LRScheduler):
    """Multiplied by gamma after every step_size steps.
    Example: schedule = lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)"""

    def __init__(self, optimizer, step_size, gamma=0.1, last_step=-1, verbose=False, *, last_epoch=None):
        at_least_one("StepLR", "step_size", step_size)
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def factor(self, step):
        return formulas.step_factor(step, self.step_size, self.gamma)


class MultiStepLR(LRScheduler):
    """Multiplied by gamma at each of the milestones.
    Example: schedule = lr_scheduler.MultiStepLR(optimizer, milestones=[2, 5], gamma=0.1)"""

    def __init__(self, optimizer, milestones, gamma=0.1, last_step=-1, verbose=False, *, last_epoch=None):
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def factor(self, step):
        return formulas.multi_step_factor(step, self.milestones, self.gamma)


class ExponentialLR(LRScheduler):
    """Multiplied by gamma at every step.
    Example: schedule = lr_scheduler.ExponentialLR(optimizer, gamma=0.9)"""

    def __init__(self, optimizer, gamma, last_step=-1, verbose=False, *, last_epoch=None):
        self.gamma = gamma
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def factor(self, step):
        return formulas.exponential_factor(step, self.gamma)


class ConstantLR(LRScheduler):
    """Multiplied by factor for total_iters steps, then no more.
    Example: schedule = lr_scheduler.ConstantLR(optimizer, factor=0.5, total_iters=3)"""

    def __init__(self, optimizer, factor=1 / 3, total_iters=5, last_step=-1, verbose=False, *, last_epoch=None):
        if not 0 <= factor <= 1:
            raise ValueError(f"ConstantLR: factor is {factor}; it must be in [0, 1].")
        self._factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def factor(self, step):
        return formulas.constant_factor(step, self._factor, self.total_iters)


class LinearLR(LRScheduler):
    """From start_factor to end_factor along a line over total_iters steps.
    Example: schedule = lr_scheduler.LinearLR(optimizer, start_factor=0.25, total_iters=3)"""

    def __init__(
        self,
        optimizer,
        start_factor=1 / 3,
        end_factor=1.0,
        total_iters=5,
        last_step=-1,
        verbose=False,
        *,
        last_epoch=None,
    ):
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def factor(self, step):
        return formulas.linear_factor(step, self.start_factor, self.end_factor, self.total_iters)


class CosineAnnealingLR(LRScheduler):
    """From the base rate to eta_min along half a cosine over T_max steps, and back over the next T_max.
    Example: schedule = lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)"""

    def __init__(self, optimizer, T_max, eta_min=0.0, last_step=-1, verbose=False, *, last_epoch=None):
        at_least_one("CosineAnnealingLR", "T_max", T_max)
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def get_lr(self, base_lr, step):
        return formulas.cosine_annealing_lr(step, base_lr, self.T_max, self.eta_min)


class CosineDecayLR(LRScheduler):
    """From the base rate to alpha times it along half a cosine over decay_steps, where it stays.
    Example: schedule = lr_scheduler.CosineDecayLR(optimizer, decay_steps=4, alpha=0.1)"""

    def __init__(self, optimizer, decay_steps, alpha=0.0, last_step=-1, verbose=False, *, last_epoch=None):
        at_least_one("CosineDecayLR", "decay_steps", decay_steps)
        self.decay_steps, self.alpha = decay_steps, alpha
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def factor(self, step):
        return formulas.cosine_decay_factor(step, self.decay_steps, self.alpha)


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half a cosine from the base rate to eta_min over T_0 steps, then again, each time over T_mult times as many.

    decay_rate: by which the base rate is multiplied at each restart;
    restart_limit: the restart from which on the rate is eta_min (0: none).

    Example: schedule = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=2, T_mult=2)"""

    def __init__(
        self,
        optimizer,
        T_0,
        T_mult=1,
        eta_min=0.0,
        last_step=-1,
        verbose=False,
        *,
        decay_rate=1.0,
        restart_limit=0,
        last_epoch=None,
    ):
        at_least_one("CosineAnnealingWarmRestarts", "T_0", T_0)
        at_least_one("CosineAnnealingWarmRestarts", "T_mult", T_mult)
        self.T_0, self.T_mult, self.eta_min = T_0, T_mult, eta_min
        self.decay_rate, self.restart_limit = decay_rate, restart_limit
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def get_lr(self, base_lr, step):
        return formulas.cosine_warm_restarts_lr(
            step, base_lr, self.T_0, self.T_mult, self.eta_min, self.decay_rate, self.restart_limit
        )


class PolynomialLR(LRScheduler):
    """(base - end) * (1 - step / steps) ** power + end;
    from `steps` on the rate stays at end, or with cycle decays again.

    total_iters is PyTorch's name of steps; given so, the end is 0 unless said otherwise, as there.

    Example: schedule = lr_scheduler.PolynomialLR(optimizer, steps=4, end_learning_rate=0.01, power=2.0)
    """

    def __init__(
        self,
        optimizer,
        steps=None,
        end_learning_rate=None,
        power=1.0,
        cycle=False,
        last_step=-1,
        verbose=False,
        *,
        decay_batch=None,
        total_iters=None,
        last_epoch=None,
    ):
        given = [n for n in (steps, decay_batch, total_iters) if n is not None]
        if len(given) != 1:
            raise ValueError("PolynomialLR takes one of steps (or its other names decay_batch and total_iters).")
        at_least_one("PolynomialLR", "steps", given[0])
        self.steps, self.power, self.cycle = given[0], power, cycle
        self.end_learning_rate = (
            end_learning_rate if end_learning_rate is not None else 0.0 if total_iters is not None else 1e-4
        )
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def get_lr(self, base_lr, step):
        return formulas.polynomial_lr(step, base_lr, self.steps, self.end_learning_rate, self.power, self.cycle)
