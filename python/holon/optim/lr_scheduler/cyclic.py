"""Schedules that go up and down again, the momentum the other way."""

from .base import LRScheduler, at_least_one, formulas, per_group


class OneCycleLR(LRScheduler):
    """One rise to max_lr and one fall over all steps of the training; the momentum (or beta1) goes the other way.
    Example: schedule = lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=8)"""

    def __init__(
        self,
        optimizer,
        max_lr,
        total_steps=None,
        epochs=None,
        steps_per_epoch=None,
        pct_start=0.3,
        anneal_strategy="cos",
        cycle_momentum=True,
        base_momentum=0.85,
        max_momentum=0.95,
        div_factor=25.0,
        final_div_factor=1e4,
        three_phase=False,
        last_step=-1,
        verbose=False,
        *,
        last_epoch=None,
    ):
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError("OneCycleLR needs total_steps, or epochs and steps_per_epoch.")
            total_steps = epochs * steps_per_epoch
        at_least_one("OneCycleLR", "total_steps", total_steps)
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"OneCycleLR: anneal_strategy is {anneal_strategy!r}; it must be 'cos' or 'linear'.")
        if not 0 <= pct_start <= 1:
            raise ValueError(f"OneCycleLR: pct_start is {pct_start}; it must be in [0, 1].")
        self.total_steps, self.cycle_momentum = total_steps, cycle_momentum
        self.max_lrs = per_group("OneCycleLR", optimizer, max_lr)
        self._cycles = []
        for peak, low, high in zip(
            self.max_lrs,
            per_group("OneCycleLR", optimizer, base_momentum),
            per_group("OneCycleLR", optimizer, max_momentum),
        ):
            c = formulas.OneCycle()
            c.peak, c.total_steps, c.pct_start, c.linear = peak, total_steps, pct_start, anneal_strategy == "linear"
            c.div_factor, c.final_div_factor, c.three_phase = div_factor, final_div_factor, three_phase
            c.base_momentum, c.max_momentum = low, high
            self._cycles.append(c)
        if cycle_momentum and not any(name in optimizer.param_groups[0] for name in ("momentum", "betas")):
            raise ValueError("OneCycleLR: the optimizer has neither momentum nor betas. Give cycle_momentum=False.")
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def get_lr(self, base_lr, step):
        return self._cycles[0].lr(step)

    def _group_lr(self, index, base_lr):
        return self._cycles[index].lr(self.last_step)

    def _set(self):
        super()._set()
        if self.cycle_momentum:
            for group, cycle in zip(self.optimizer.param_groups, self._cycles):
                _set_momentum(group, cycle.momentum(self.last_step))


def _set_momentum(group, value):
    if "betas" in group:
        group["betas"] = (value, *group["betas"][1:])
    else:
        group["momentum"] = value


class CyclicLR(LRScheduler):
    """Back and forth between base_lr and max_lr; the momentum (or beta1) goes the other way.

    mode: "triangular", "triangular2" (the amplitude is halved each cycle),
    "exp_range" (it is multiplied by gamma each step);
    scale_fn: a function of the cycle, counted from 1, or (scale_mode "iterations") of the step, instead.

    Example: schedule = lr_scheduler.CyclicLR(optimizer, base_lr=0.1, max_lr=0.5, step_size_up=3)
    """

    def __init__(
        self,
        optimizer,
        base_lr,
        max_lr,
        step_size_up=2000,
        step_size_down=None,
        mode="triangular",
        gamma=1.0,
        scale_fn=None,
        scale_mode="cycle",
        cycle_momentum=True,
        base_momentum=0.8,
        max_momentum=0.9,
        last_step=-1,
        verbose=False,
        *,
        last_epoch=None,
    ):
        self.step_size_up, self.step_size_down = (
            step_size_up,
            step_size_up if step_size_down is None else step_size_down,
        )
        at_least_one("CyclicLR", "step_size_up", self.step_size_up)
        at_least_one("CyclicLR", "step_size_down", self.step_size_down)
        if mode not in ("triangular", "triangular2", "exp_range"):
            raise ValueError(f"CyclicLR: mode is {mode!r}; it must be 'triangular', 'triangular2' or 'exp_range'.")
        if scale_mode not in ("cycle", "iterations"):
            raise ValueError(f"CyclicLR: scale_mode is {scale_mode!r}; it must be 'cycle' or 'iterations'.")
        self.mode, self.gamma, self.scale_mode = mode, gamma, scale_mode
        self._scale_fn = scale_fn
        self.max_lrs = per_group("CyclicLR", optimizer, max_lr)
        self.base_momentums = per_group("CyclicLR", optimizer, base_momentum)
        self.max_momentums = per_group("CyclicLR", optimizer, max_momentum)
        self.cycle_momentum = cycle_momentum
        if cycle_momentum and not any(name in optimizer.param_groups[0] for name in ("momentum", "betas")):
            raise ValueError("CyclicLR: the optimizer has neither momentum nor betas. Give cycle_momentum=False.")
        for group, lr in zip(optimizer.param_groups, per_group("CyclicLR", optimizer, base_lr)):
            group["initial_lr"] = group["lr"] = lr
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def _share(self, step):
        mode = "triangular" if self._scale_fn else self.mode
        share = formulas.cyclic_share(step, self.step_size_up, self.step_size_down, mode, self.gamma)
        if self._scale_fn:
            share *= self._scale_fn(
                step // (self.step_size_up + self.step_size_down) + 1 if self.scale_mode == "cycle" else step
            )
        return share

    def get_lr(self, base_lr, step):
        return base_lr + (self.max_lrs[0] - base_lr) * self._share(step)

    def _group_lr(self, index, base_lr):
        return base_lr + (self.max_lrs[index] - base_lr) * self._share(self.last_step)

    def _set(self):
        super()._set()
        if self.cycle_momentum:
            share = self._share(self.last_step)
            for group, low, high in zip(self.optimizer.param_groups, self.base_momentums, self.max_momentums):
                _set_momentum(group, high - (high - low) * share)
