"""Schedules made of schedules."""

import bisect

from .base import LRScheduler, formulas


class _Composed(LRScheduler):
    """A schedule that asks others."""

    def __init__(self, optimizer, schedulers, last_step, verbose, last_epoch):
        if not schedulers:
            raise ValueError(f"{type(self).__name__} needs at least one schedule.")
        for i, s in enumerate(schedulers):
            if s.optimizer is not optimizer:
                raise ValueError(f"{type(self).__name__}: schedule {i} belongs to another optimizer.")
        self.schedulers = list(schedulers)
        self._inner(*self.schedulers)
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def _ask(self, scheduler, index, base_lr, step):
        scheduler.last_step = step
        return scheduler._group_lr(index, base_lr)

    def get_lr(self, base_lr, step):
        before, self.last_step = self.last_step, step
        try:
            return self._group_lr(0, base_lr)
        finally:
            self.last_step = before

    def state_dict(self):
        return {**super().state_dict(), "schedulers": [s.state_dict() for s in self.schedulers]}

    def load_state_dict(self, state_dict):
        state = dict(state_dict)
        inner = state.pop("schedulers", [])
        if len(inner) != len(self.schedulers):
            raise ValueError(
                f"load_state_dict of {type(self).__name__}: {len(inner)} schedules there, {len(self.schedulers)} here."
            )
        for s, own in zip(self.schedulers, inner):
            s.load_state_dict(own)
        super().load_state_dict({**state, "schedulers": self.schedulers})


class SequentialLR(_Composed):
    """One schedule after the other: schedulers[i + 1] takes over at milestones[i].

    interval_rescaling: whether a schedule counts its steps from its own beginning, as in PyTorch, rather than from that
    of the whole; one value, or one for each milestone.

    Example: parts = [lr_scheduler.ConstantLR(optimizer), lr_scheduler.StepLR(optimizer, 2)]
    Example: schedule = lr_scheduler.SequentialLR(optimizer, parts, [3])
    """

    def __init__(
        self,
        optimizer,
        schedulers,
        milestones,
        interval_rescaling=False,
        last_step=-1,
        verbose=False,
        *,
        last_epoch=None,
    ):
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                f"SequentialLR: {len(schedulers)} schedules need {len(schedulers) - 1} milestones, "
                f"found {len(milestones)}."
            )
        if list(milestones) != sorted(milestones):
            raise ValueError(f"SequentialLR: the milestones {list(milestones)} must rise.")
        self.milestones = list(milestones)
        rescaling = (
            interval_rescaling
            if isinstance(interval_rescaling, (list, tuple))
            else [interval_rescaling] * len(milestones)
        )
        if len(rescaling) != len(milestones):
            raise ValueError(
                f"SequentialLR: {len(rescaling)} values of interval_rescaling for {len(milestones)} milestones."
            )
        self.interval_rescaling = list(rescaling)
        super().__init__(optimizer, schedulers, last_step, verbose, last_epoch)

    def _group_lr(self, index, base_lr):
        step = self.last_step
        i = bisect.bisect_right(self.milestones, step)
        if i > 0 and self.interval_rescaling[i - 1]:
            step -= self.milestones[i - 1]
        return self._ask(self.schedulers[i], index, base_lr, step)


class ChainedScheduler(_Composed):
    """All schedules at once: what each makes of the base rate is the base of the next.
    Example: parts = [lr_scheduler.ExponentialLR(optimizer, 0.9), lr_scheduler.StepLR(optimizer, 3)]
    Example: schedule = lr_scheduler.ChainedScheduler(parts)"""

    def __init__(self, schedulers, optimizer=None, last_step=-1, verbose=False):
        schedulers = list(schedulers)
        if not schedulers:
            raise ValueError("ChainedScheduler needs at least one schedule.")
        super().__init__(optimizer or schedulers[0].optimizer, schedulers, last_step, verbose, None)

    def _group_lr(self, index, base_lr):
        for s in self.schedulers:
            base_lr = self._ask(s, index, base_lr, self.last_step)
        return base_lr


class WarmupLR(LRScheduler):
    """A warm-up of warmup_iters steps before another schedule, or before an optimizer's constant rate.

    warmup_method "linear" rises along a line from warmup_factor times the base rate to the rate at which the schedule
    goes on, "constant" stays at warmup_factor. The schedule's steps count from the start of the warm-up; with
    warmup_prefix they count from its end.

    Example: cosine = lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)
    Example: schedule = lr_scheduler.WarmupLR(cosine, warmup_factor=0.1, warmup_iters=2)
    """

    def __init__(
        self,
        scheduler_or_optimizer,
        warmup_factor=1 / 3,
        warmup_iters=5,
        warmup_method="linear",
        warmup_prefix=False,
        last_step=-1,
        verbose=False,
        *,
        last_epoch=None,
    ):
        if warmup_method not in ("linear", "constant"):
            raise ValueError(f"WarmupLR: warmup_method is {warmup_method!r}; it must be 'linear' or 'constant'.")
        inner = scheduler_or_optimizer if isinstance(scheduler_or_optimizer, LRScheduler) else None
        if inner is None and not hasattr(scheduler_or_optimizer, "param_groups"):
            raise TypeError(f"WarmupLR takes a schedule or an optimizer, not {type(scheduler_or_optimizer).__name__}.")
        self.inner = inner
        self.warmup_factor, self.warmup_iters = warmup_factor, warmup_iters
        self.warmup_method, self.warmup_prefix = warmup_method, warmup_prefix
        if inner is not None:
            self._inner(inner)
        super().__init__(
            inner.optimizer if inner else scheduler_or_optimizer, last_step, verbose, last_epoch=last_epoch
        )

    def _inner_lr(self, index, base_lr, step):
        if self.inner is None:
            return base_lr
        self.inner.last_step = step
        return self.inner._group_lr(index, base_lr)

    def _group_lr(self, index, base_lr):
        step, iters = self.last_step, self.warmup_iters
        if step >= iters:
            return self._inner_lr(index, base_lr, step - iters if self.warmup_prefix else step)
        if self.warmup_method == "constant":
            return base_lr * self.warmup_factor
        end = base_lr if self.warmup_prefix else self._inner_lr(index, base_lr, iters)
        return base_lr * formulas.linear_factor(step, self.warmup_factor, end / base_lr if base_lr else 1.0, iters)

    def get_lr(self, base_lr, step):
        before, self.last_step = self.last_step, step
        try:
            return self._group_lr(0, base_lr)
        finally:
            self.last_step = before

    def state_dict(self):
        return {**super().state_dict(), "inner": self.inner.state_dict() if self.inner else None}

    def load_state_dict(self, state_dict):
        state = dict(state_dict)
        inner = state.pop("inner", None)
        if (inner is None) != (self.inner is None):
            raise ValueError("load_state_dict of WarmupLR: it warms up before a schedule in one of the two only.")
        if inner is not None:
            self.inner.load_state_dict(inner)
        super().load_state_dict(state)


WarmUpLR = WarmupLR
