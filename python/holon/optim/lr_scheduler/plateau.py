"""A schedule that looks at a metric."""

import math

from .base import formulas, per_group


class ReduceLROnPlateau:
    """Multiplies the rates by factor each time a metric has not improved for more than `patience` steps:
    step(metric).
    Example: schedule = lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)"""

    def __init__(
        self,
        optimizer,
        mode="min",
        factor=0.1,
        patience=10,
        threshold=1e-4,
        threshold_mode="rel",
        cooldown=0,
        min_lr=0,
        eps=1e-8,
        verbose=False,
    ):
        if not factor < 1:
            raise ValueError(f"ReduceLROnPlateau: factor is {factor}; it must be below 1.")
        if mode not in ("min", "max"):
            raise ValueError(f"ReduceLROnPlateau: mode is {mode!r}; it must be 'min' or 'max'.")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(f"ReduceLROnPlateau: threshold_mode is {threshold_mode!r}; it must be 'rel' or 'abs'.")
        self.optimizer, self.eps, self.verbose = optimizer, eps, verbose
        self.min_lrs = per_group("ReduceLROnPlateau", optimizer, min_lr)
        self._plateau = p = formulas.Plateau()
        p.maximize, p.factor, p.patience, p.cooldown = mode == "max", factor, patience, cooldown
        p.threshold, p.relative = threshold, threshold_mode == "rel"
        self.last_step = 0

    @property
    def last_epoch(self):
        return self.last_step

    @property
    def best(self):
        """The best metric so far; the worst possible one before the first."""
        return (
            (-math.inf if self._plateau.maximize else math.inf)
            if math.isnan(self._plateau.best)
            else self._plateau.best
        )

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
