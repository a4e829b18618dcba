"""Learning rates that change over time. A schedule is a formula of the step, so that it goes on rightly from any step; `step()`
is called once after each optimizer.step(). The formulas are C++ (holon/optim/schedule.h).

Several schedules on one optimizer act one after the other: what the first makes of the base rate is the base of the next.
"""
import bisect
import inspect
import math
import types
import weakref

from .. import _C

_formulas = _C.schedule
# The schedules of an optimizer in the order in which they were made.
_chains = weakref.WeakKeyDictionary()


class LRScheduler:
    """Base, to derive from: define `factor(step)`, by which the base rate is multiplied, or `get_lr(base_lr, step)`, or, as in
    PyTorch, `get_lr()`, which returns the rates of all groups.
    Example: half = type("Half", (lr_scheduler.LRScheduler,), {"factor": lambda self, step: 0.5 ** step})(optimizer)"""

    def __init__(self, optimizer, last_step=-1, verbose=False, *, last_epoch=None):
        if not hasattr(optimizer, "param_groups"):
            raise TypeError(f"{type(self).__name__} takes an optimizer, not {type(optimizer).__name__}.")
        self.optimizer = optimizer
        self.verbose = verbose
        self.last_step = last_step if last_epoch is None else last_epoch
        for i, group in enumerate(optimizer.param_groups):
            if self.last_step == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                raise KeyError(f"{type(self).__name__}: to go on from step {self.last_step}, group {i} needs its 'initial_lr'. Load the "
                               "optimizer's state_dict() first.")
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self._own_get_lr = not inspect.signature(self.get_lr).parameters
        _chains.setdefault(optimizer, []).append(weakref.ref(self))
        self.step()

    def _inner(self, *schedulers):
        """Takes schedules out of the optimizer's chain: from now on this one asks them."""
        chain = _chains.get(self.optimizer if hasattr(self, "optimizer") else schedulers[0].optimizer, [])
        chain[:] = [ref for ref in chain if ref() not in schedulers]
        for s in schedulers:
            if s._own_get_lr:
                raise TypeError(f"{type(self).__name__}: {type(s).__name__}.get_lr() takes no step, so that it cannot be one of several. "
                                "Define get_lr(base_lr, step).")

    @property
    def last_epoch(self):
        return self.last_step

    @last_epoch.setter
    def last_epoch(self, value):
        self.last_step = value

    def factor(self, step):
        raise NotImplementedError(f"{type(self).__name__} must define factor(step) or get_lr(base_lr, step).")

    def get_lr(self, base_lr, step):
        return base_lr * self.factor(step)

    def step(self, epoch=None):
        """Goes on by one step (or to the given one) and sets the rates of all groups."""
        self.last_step = self.last_step + 1 if epoch is None else epoch
        self._set()

    def _group_lr(self, index, base_lr):
        """The rate of a group; a schedule with a formula for each group overrides it."""
        return self.get_lr(base_lr, self.last_step)

    def _set(self):
        groups = self.optimizer.param_groups
        if self._own_get_lr:
            rates = self.get_lr()
        else:
            chain = [s for s in (ref() for ref in _chains[self.optimizer]) if s is not None and not s._own_get_lr and s.last_step >= 0]
            rates = []
            for i, group in enumerate(groups):
                # A group that was added later counts from the rate that it came with.
                lr = group.setdefault("initial_lr", group["lr"])
                for s in chain:
                    lr = s._group_lr(i, lr)
                rates.append(lr)
        self._put(rates)

    def _put(self, rates):
        for i, (group, lr) in enumerate(zip(self.optimizer.param_groups, rates)):
            group["lr"] = lr
            if self.verbose:
                print(f"learning rate of group {i} at step {self.last_step}: {lr:.6g}")

    def get_last_lr(self):
        """Returns the rates as set last, one for each group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self):
        """Returns what load_state_dict() needs to go on. Functions are not in it, as they have no values to save."""
        state = {name: value for name, value in vars(self).items() if name not in ("optimizer", "_own_get_lr") and _is_plain(value)}
        return {**state, "last_step": self.last_step, "base_lrs": list(self.base_lrs)}

    def load_state_dict(self, state_dict):
        """Takes over what state_dict() returned, and sets the rates."""
        missing = {"last_step", "base_lrs"} - set(state_dict)
        if missing:
            raise ValueError(f"load_state_dict of {type(self).__name__}: there is no {sorted(missing)[0]!r}.")
        own = set(self.state_dict())
        unknown = [name for name in state_dict if name not in own]
        if unknown:
            raise ValueError(f"load_state_dict of {type(self).__name__}: it has no {unknown[0]!r}. It was saved by another schedule.")
        vars(self).update({name: list(v) if isinstance(v, list) else v for name, v in state_dict.items()})
        for group, base_lr in zip(self.optimizer.param_groups, self.base_lrs):
            group["initial_lr"] = base_lr
        self._set()


_LRScheduler = LRScheduler


def _is_plain(value):
    return isinstance(value, (bool, int, float, str, type(None))) or (isinstance(value, (list, tuple)) and all(map(_is_plain, value)))


def _at_least_one(name, what, value):
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}: {what} is {value}; it must be 1 or more.")


def _per_group(name, optimizer, value):
    n = len(optimizer.param_groups)
    values = list(value) if isinstance(value, (list, tuple)) else [value] * n
    if len(values) != n:
        raise ValueError(f"{name}: {len(values)} values for {n} groups of parameters. Give one for each.")
    return values


class LambdaLR(LRScheduler):
    """The base rate times lr_lambda(step); a list gives each group its own function.
    Example: schedule = lr_scheduler.LambdaLR(optimizer, lambda step: 0.9 ** step)"""

    def __init__(self, optimizer, lr_lambda, last_step=-1, verbose=False, *, last_epoch=None):
        self.lr_lambdas = _per_group("LambdaLR", optimizer, lr_lambda)
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def get_lr(self, base_lr, step):
        return base_lr * self.lr_lambdas[0](step)

    def _group_lr(self, index, base_lr):
        return base_lr * self.lr_lambdas[index](self.last_step)

    def state_dict(self):
        # Functions that are objects have attributes to save.
        own = [None if isinstance(f, types.FunctionType) else dict(vars(f)) if hasattr(f, "__dict__") else None for f in self.lr_lambdas]
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
        _at_least_one("StepLR", "step_size", step_size)
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def factor(self, step):
        return _formulas.step_factor(step, self.step_size, self.gamma)


class MultiStepLR(LRScheduler):
    """Multiplied by gamma at each of the milestones.
    Example: schedule = lr_scheduler.MultiStepLR(optimizer, milestones=[2, 5], gamma=0.1)"""

    def __init__(self, optimizer, milestones, gamma=0.1, last_step=-1, verbose=False, *, last_epoch=None):
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def factor(self, step):
        return _formulas.multi_step_factor(step, self.milestones, self.gamma)


class ExponentialLR(LRScheduler):
    """Multiplied by gamma at every step.
    Example: schedule = lr_scheduler.ExponentialLR(optimizer, gamma=0.9)"""

    def __init__(self, optimizer, gamma, last_step=-1, verbose=False, *, last_epoch=None):
        self.gamma = gamma
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def factor(self, step):
        return _formulas.exponential_factor(step, self.gamma)


class ConstantLR(LRScheduler):
    """Multiplied by factor for total_iters steps, then no more.
    Example: schedule = lr_scheduler.ConstantLR(optimizer, factor=0.5, total_iters=3)"""

    def __init__(self, optimizer, factor=1 / 3, total_iters=5, last_step=-1, verbose=False, *, last_epoch=None):
        if not 0 <= factor <= 1:
            raise ValueError(f"ConstantLR: factor is {factor}; it must lie in [0, 1].")
        self._factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def factor(self, step):
        return _formulas.constant_factor(step, self._factor, self.total_iters)


class LinearLR(LRScheduler):
    """From start_factor to end_factor along a line over total_iters steps.
    Example: schedule = lr_scheduler.LinearLR(optimizer, start_factor=0.25, total_iters=3)"""

    def __init__(self, optimizer, start_factor=1 / 3, end_factor=1.0, total_iters=5, last_step=-1, verbose=False, *, last_epoch=None):
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def factor(self, step):
        return _formulas.linear_factor(step, self.start_factor, self.end_factor, self.total_iters)


class CosineAnnealingLR(LRScheduler):
    """From the base rate to eta_min along half a cosine over T_max steps, and back over the next T_max.
    Example: schedule = lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)"""

    def __init__(self, optimizer, T_max, eta_min=0.0, last_step=-1, verbose=False, *, last_epoch=None):
        _at_least_one("CosineAnnealingLR", "T_max", T_max)
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def get_lr(self, base_lr, step):
        return _formulas.cosine_annealing_lr(step, base_lr, self.T_max, self.eta_min)


class CosineDecayLR(LRScheduler):
    """From the base rate to alpha times it along half a cosine over decay_steps, where it stays.
    Example: schedule = lr_scheduler.CosineDecayLR(optimizer, decay_steps=4, alpha=0.1)"""

    def __init__(self, optimizer, decay_steps, alpha=0.0, last_step=-1, verbose=False, *, last_epoch=None):
        _at_least_one("CosineDecayLR", "decay_steps", decay_steps)
        self.decay_steps, self.alpha = decay_steps, alpha
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def factor(self, step):
        return _formulas.cosine_decay_factor(step, self.decay_steps, self.alpha)


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half a cosine from the base rate to eta_min over T_0 steps, then anew, each time over T_mult times as many.

    decay_rate: by which the base rate is multiplied at each restart; restart_limit: the restart from which on the rate is eta_min (0: none).

    Example: schedule = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=2, T_mult=2)"""

    def __init__(self, optimizer, T_0, T_mult=1, eta_min=0.0, last_step=-1, verbose=False, *, decay_rate=1.0, restart_limit=0, last_epoch=None):
        _at_least_one("CosineAnnealingWarmRestarts", "T_0", T_0)
        _at_least_one("CosineAnnealingWarmRestarts", "T_mult", T_mult)
        self.T_0, self.T_mult, self.eta_min = T_0, T_mult, eta_min
        self.decay_rate, self.restart_limit = decay_rate, restart_limit
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def get_lr(self, base_lr, step):
        return _formulas.cosine_warm_restarts_lr(step, base_lr, self.T_0, self.T_mult, self.eta_min, self.decay_rate, self.restart_limit)


class PolynomialLR(LRScheduler):
    """(base - end) * (1 - step / steps) ** power + end; from `steps` on the rate stays at end, or with cycle falls anew.

    total_iters is PyTorch's name of steps; given so, the end is 0 unless said otherwise, as there.

    Example: schedule = lr_scheduler.PolynomialLR(optimizer, steps=4, end_learning_rate=0.01, power=2.0)
    """

    def __init__(self, optimizer, steps=None, end_learning_rate=None, power=1.0, cycle=False, last_step=-1, verbose=False, *,
                 decay_batch=None, total_iters=None, last_epoch=None):
        given = [n for n in (steps, decay_batch, total_iters) if n is not None]
        if len(given) != 1:
            raise ValueError("PolynomialLR takes one of steps (or its other names decay_batch and total_iters).")
        _at_least_one("PolynomialLR", "steps", given[0])
        self.steps, self.power, self.cycle = given[0], power, cycle
        self.end_learning_rate = end_learning_rate if end_learning_rate is not None else 0.0 if total_iters is not None else 1e-4
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def get_lr(self, base_lr, step):
        return _formulas.polynomial_lr(step, base_lr, self.steps, self.end_learning_rate, self.power, self.cycle)


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
            raise ValueError(f"load_state_dict of {type(self).__name__}: {len(inner)} schedules there, {len(self.schedulers)} here.")
        for s, own in zip(self.schedulers, inner):
            s.load_state_dict(own)
        super().load_state_dict({**state, "schedulers": self.schedulers})


class SequentialLR(_Composed):
    """One schedule after the other: schedulers[i + 1] takes over at milestones[i].

    interval_rescaling: whether a schedule counts its steps from its own beginning, as in PyTorch, rather than from that of
    the whole; one value, or one for each milestone.

    Example: schedule = lr_scheduler.SequentialLR(optimizer, [lr_scheduler.ConstantLR(optimizer), lr_scheduler.StepLR(optimizer, 2)], [3])
    """

    def __init__(self, optimizer, schedulers, milestones, interval_rescaling=False, last_step=-1, verbose=False, *, last_epoch=None):
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(f"SequentialLR: {len(schedulers)} schedules need {len(schedulers) - 1} milestones, found {len(milestones)}.")
        if list(milestones) != sorted(milestones):
            raise ValueError(f"SequentialLR: the milestones {list(milestones)} must rise.")
        self.milestones = list(milestones)
        rescaling = interval_rescaling if isinstance(interval_rescaling, (list, tuple)) else [interval_rescaling] * len(milestones)
        if len(rescaling) != len(milestones):
            raise ValueError(f"SequentialLR: {len(rescaling)} values of interval_rescaling for {len(milestones)} milestones.")
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
    Example: schedule = lr_scheduler.ChainedScheduler([lr_scheduler.ExponentialLR(optimizer, 0.9), lr_scheduler.StepLR(optimizer, 3)])"""

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

    warmup_method "linear" rises along a line from warmup_factor times the base rate to the rate at which the schedule goes on,
    "constant" stays at warmup_factor. The schedule's steps count from the start of the warm-up; with warmup_prefix they
    count from its end.

    Example: schedule = lr_scheduler.WarmupLR(lr_scheduler.CosineAnnealingLR(optimizer, T_max=6), warmup_factor=0.1, warmup_iters=2)
    """

    def __init__(self, scheduler_or_optimizer, warmup_factor=1 / 3, warmup_iters=5, warmup_method="linear", warmup_prefix=False,
                 last_step=-1, verbose=False, *, last_epoch=None):
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
        super().__init__(inner.optimizer if inner else scheduler_or_optimizer, last_step, verbose, last_epoch=last_epoch)

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
        return base_lr * _formulas.linear_factor(step, self.warmup_factor, end / base_lr if base_lr else 1.0, iters)

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


class OneCycleLR(LRScheduler):
    """One rise to max_lr and one fall over all steps of the training; the momentum (or beta1) goes the other way.
    Example: schedule = lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=8)"""

    def __init__(self, optimizer, max_lr, total_steps=None, epochs=None, steps_per_epoch=None, pct_start=0.3, anneal_strategy="cos",
                 cycle_momentum=True, base_momentum=0.85, max_momentum=0.95, div_factor=25.0, final_div_factor=1e4,
                 three_phase=False, last_step=-1, verbose=False, *, last_epoch=None):
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError("OneCycleLR needs total_steps, or epochs and steps_per_epoch.")
            total_steps = epochs * steps_per_epoch
        _at_least_one("OneCycleLR", "total_steps", total_steps)
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"OneCycleLR: anneal_strategy is {anneal_strategy!r}; it must be 'cos' or 'linear'.")
        if not 0 <= pct_start <= 1:
            raise ValueError(f"OneCycleLR: pct_start is {pct_start}; it must lie in [0, 1].")
        self.total_steps, self.cycle_momentum = total_steps, cycle_momentum
        self.max_lrs = _per_group("OneCycleLR", optimizer, max_lr)
        self._cycles = []
        for peak, low, high in zip(self.max_lrs, _per_group("OneCycleLR", optimizer, base_momentum),
                                   _per_group("OneCycleLR", optimizer, max_momentum)):
            c = _formulas.OneCycle()
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

    mode: "triangular", "triangular2" (the amplitude is halved each cycle), "exp_range" (it is multiplied by gamma each step);
    scale_fn: a function of the cycle, counted from 1, or (scale_mode "iterations") of the step, instead.

    Example: schedule = lr_scheduler.CyclicLR(optimizer, base_lr=0.1, max_lr=0.5, step_size_up=3)
    """

    def __init__(self, optimizer, base_lr, max_lr, step_size_up=2000, step_size_down=None, mode="triangular", gamma=1.0, scale_fn=None,
                 scale_mode="cycle", cycle_momentum=True, base_momentum=0.8, max_momentum=0.9, last_step=-1, verbose=False, *,
                 last_epoch=None):
        self.step_size_up, self.step_size_down = step_size_up, step_size_up if step_size_down is None else step_size_down
        _at_least_one("CyclicLR", "step_size_up", self.step_size_up)
        _at_least_one("CyclicLR", "step_size_down", self.step_size_down)
        if mode not in ("triangular", "triangular2", "exp_range"):
            raise ValueError(f"CyclicLR: mode is {mode!r}; it must be 'triangular', 'triangular2' or 'exp_range'.")
        if scale_mode not in ("cycle", "iterations"):
            raise ValueError(f"CyclicLR: scale_mode is {scale_mode!r}; it must be 'cycle' or 'iterations'.")
        self.mode, self.gamma, self.scale_mode = mode, gamma, scale_mode
        self._scale_fn = scale_fn
        self.max_lrs = _per_group("CyclicLR", optimizer, max_lr)
        self.base_momentums = _per_group("CyclicLR", optimizer, base_momentum)
        self.max_momentums = _per_group("CyclicLR", optimizer, max_momentum)
        self.cycle_momentum = cycle_momentum
        if cycle_momentum and not any(name in optimizer.param_groups[0] for name in ("momentum", "betas")):
            raise ValueError("CyclicLR: the optimizer has neither momentum nor betas. Give cycle_momentum=False.")
        for group, lr in zip(optimizer.param_groups, _per_group("CyclicLR", optimizer, base_lr)):
            group["initial_lr"] = group["lr"] = lr
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def _share(self, step):
        mode = "triangular" if self._scale_fn else self.mode
        share = _formulas.cyclic_share(step, self.step_size_up, self.step_size_down, mode, self.gamma)
        if self._scale_fn:
            share *= self._scale_fn(step // (self.step_size_up + self.step_size_down) + 1 if self.scale_mode == "cycle" else step)
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


class ReduceLROnPlateau:
    """Multiplies the rates by factor each time a metric has not got better for more than `patience` steps: step(metric).
    Example: schedule = lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)"""

    def __init__(self, optimizer, mode="min", factor=0.1, patience=10, threshold=1e-4, threshold_mode="rel", cooldown=0, min_lr=0,
                 eps=1e-8, verbose=False):
        if not factor < 1:
            raise ValueError(f"ReduceLROnPlateau: factor is {factor}; it must be below 1.")
        if mode not in ("min", "max"):
            raise ValueError(f"ReduceLROnPlateau: mode is {mode!r}; it must be 'min' or 'max'.")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(f"ReduceLROnPlateau: threshold_mode is {threshold_mode!r}; it must be 'rel' or 'abs'.")
        self.optimizer, self.eps, self.verbose = optimizer, eps, verbose
        self.min_lrs = _per_group("ReduceLROnPlateau", optimizer, min_lr)
        self._plateau = p = _formulas.Plateau()
        p.maximize, p.factor, p.patience, p.cooldown = mode == "max", factor, patience, cooldown
        p.threshold, p.relative = threshold, threshold_mode == "rel"
        self.last_step = 0

    @property
    def last_epoch(self):
        return self.last_step

    @property
    def best(self):
        """The best metric so far; the worst possible one before the first."""
        return (-math.inf if self._plateau.maximize else math.inf) if math.isnan(self._plateau.best) else self._plateau.best

    @property
    def num_bad_epochs(self):
        return self._plateau.bad_steps

    @property
    def in_cooldown(self):
        return self._plateau.cooling > 0

    def step(self, metrics):
        """Takes in the metric of one step (a number or a tensor of one element; all ranks give the same)."""
        self.last_step += 1
        if self._plateau.observe(float(metrics)):
            for i, (group, least) in enumerate(zip(self.optimizer.param_groups, self.min_lrs)):
                lr = max(group["lr"] * self._plateau.factor, least)
                if group["lr"] - lr > self.eps:
                    group["lr"] = lr
                    if self.verbose:
                        print(f"learning rate of group {i} at step {self.last_step}: {lr:.6g}")

    def get_last_lr(self):
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self):
        p = self._plateau
        return {"last_step": self.last_step, "best": p.best, "bad_steps": p.bad_steps, "cooling": p.cooling}

    def load_state_dict(self, state_dict):
        p = self._plateau
        missing = {"last_step", "best", "bad_steps", "cooling"} - set(state_dict)
        if missing:
            raise ValueError(f"load_state_dict of ReduceLROnPlateau: there is no {sorted(missing)[0]!r}.")
        self.last_step, p.best = state_dict["last_step"], state_dict["best"]
        p.bad_steps, p.cooling = state_dict["bad_steps"], state_dict["cooling"]


def __getattr__(name):
    from .._missing import error

    raise error("optim.lr_scheduler", name, [n for n in globals() if n[0] != "_"])
