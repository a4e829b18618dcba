"""Learning rates that change over time. A schedule is a formula of the step, so that it goes on rightly from any step; `step()`
is called once after each optimizer.step()."""
import bisect
import math


class LRScheduler:
    """Base: a subclass defines `factor(step)`, by which the group's first rate is multiplied, or `rate(base_lr, step)`."""

    def __init__(self, optimizer, last_step=-1, last_epoch=None):
        self.optimizer = optimizer
        self.last_step = last_step if last_epoch is None else last_epoch
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.step()

    @property
    def last_epoch(self):
        return self.last_step

    def factor(self, step):
        raise NotImplementedError(f"{type(self).__name__} must define factor(step) or rate(base_lr, step).")

    def rate(self, base_lr, step):
        return base_lr * self.factor(step)

    def step(self):
        """Goes on by one step and sets the rates of all groups."""
        self.last_step += 1
        self._set()

    def _set(self):
        for group, base_lr in zip(self.optimizer.param_groups, self.base_lrs):
            group["lr"] = self.rate(base_lr, self.last_step)

    def get_last_lr(self):
        """Returns the rates as set last, one for each group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self):
        return {"last_step": self.last_step, "base_lrs": list(self.base_lrs)}

    def load_state_dict(self, state_dict):
        self.last_step, self.base_lrs = state_dict["last_step"], list(state_dict["base_lrs"])
        self._set()


class LambdaLR(LRScheduler):
    """The first rate times lr_lambda(step); a list gives each group its own function."""

    def __init__(self, optimizer, lr_lambda, last_step=-1):
        n = len(optimizer.param_groups)
        self.lr_lambdas = list(lr_lambda) if isinstance(lr_lambda, (list, tuple)) else [lr_lambda] * n
        if len(self.lr_lambdas) != n:
            raise ValueError(f"LambdaLR: {len(self.lr_lambdas)} functions for {n} groups of parameters. Give one for each.")
        super().__init__(optimizer, last_step)

    def _set(self):
        for group, base_lr, function in zip(self.optimizer.param_groups, self.base_lrs, self.lr_lambdas):
            group["lr"] = base_lr * function(self.last_step)


class StepLR(LRScheduler):
    """Multiplied by gamma after every step_size steps."""

    def __init__(self, optimizer, step_size, gamma=0.1, last_step=-1):
        if step_size < 1:
            raise ValueError(f"StepLR: step_size is {step_size}; it must be 1 or more.")
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_step)

    def factor(self, step):
        return self.gamma ** (step // self.step_size)


class MultiStepLR(LRScheduler):
    """Multiplied by gamma at each of the milestones."""

    def __init__(self, optimizer, milestones, gamma=0.1, last_step=-1):
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer, last_step)

    def factor(self, step):
        return self.gamma ** bisect.bisect_right(self.milestones, step)


class ExponentialLR(LRScheduler):
    """Multiplied by gamma at every step."""

    def __init__(self, optimizer, gamma, last_step=-1):
        self.gamma = gamma
        super().__init__(optimizer, last_step)

    def factor(self, step):
        return self.gamma ** step


class LinearLR(LRScheduler):
    """From start_factor to end_factor along a line over total_iters steps."""

    def __init__(self, optimizer, start_factor=1 / 3, end_factor=1.0, total_iters=5, last_step=-1):
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_step)

    def factor(self, step):
        done = min(1.0, step / self.total_iters) if self.total_iters > 0 else 1.0
        return self.start_factor + (self.end_factor - self.start_factor) * done


class CosineAnnealingLR(LRScheduler):
    """From the first rate to eta_min along half a cosine over T_max steps, and back over the next T_max."""

    def __init__(self, optimizer, T_max, eta_min=0.0, last_step=-1):
        if T_max < 1:
            raise ValueError(f"CosineAnnealingLR: T_max is {T_max}; it must be 1 or more.")
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_step)

    def rate(self, base_lr, step):
        return self.eta_min + (base_lr - self.eta_min) * (1 + math.cos(math.pi * step / self.T_max)) / 2


class WarmUpLR(LRScheduler):
    """Rises over warmup_iters steps from warmup_factor to 1 times the rate of another schedule (or of an optimizer).

    warmup_method "linear" rises along a line, "constant" stays at warmup_factor. The inner schedule's steps count from the
    start of the warm-up.
    """

    def __init__(self, lrsch_or_optimizer, warmup_factor=1 / 3, warmup_iters=5, warmup_method="linear", last_step=-1):
        if warmup_method not in ("linear", "constant"):
            raise ValueError(f"WarmUpLR: warmup_method is {warmup_method!r}; it must be 'linear' or 'constant'.")
        self.inner = lrsch_or_optimizer if isinstance(lrsch_or_optimizer, LRScheduler) else None
        self.warmup_factor, self.warmup_iters, self.warmup_method = warmup_factor, warmup_iters, warmup_method
        super().__init__(self.inner.optimizer if self.inner else lrsch_or_optimizer, last_step)

    def factor(self, step):
        if step >= self.warmup_iters:
            return 1.0
        if self.warmup_method == "constant":
            return self.warmup_factor
        return self.warmup_factor + (1 - self.warmup_factor) * step / self.warmup_iters

    def _set(self):
        if self.inner is None:
            return super()._set()
        self.inner.last_step = self.last_step
        self.inner._set()
        for group in self.optimizer.param_groups:
            group["lr"] *= self.factor(self.last_step)
