"""What all schedules share."""

import inspect
import weakref

from ... import _C

formulas = _C.schedule
# The schedules of an optimizer in the order in which they were made.
_chains: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


class LRScheduler:
    """Base, to derive from: define `factor(step)`, by which the base rate is multiplied, or `get_lr(base_lr, step)`,
    or, as in PyTorch, `get_lr()`, which returns the rates of all groups.
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
                raise KeyError(
                    f"{type(self).__name__}: to go on from step {self.last_step}, group {i} needs its 'initial_lr'. "
                    "Load the optimizer's state_dict() first."
                )
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
                raise TypeError(
                    f"{type(self).__name__}: {type(s).__name__}.get_lr() takes no step, "
                    "so that it cannot be one of several. Define get_lr(base_lr, step)."
                )

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
            chain = [
                s
                for s in (ref() for ref in _chains[self.optimizer])
                if s is not None and not s._own_get_lr and s.last_step >= 0
            ]
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
        state = {
            name: value
            for name, value in vars(self).items()
            if name not in ("optimizer", "_own_get_lr") and _is_plain(value)
        }
        return {**state, "last_step": self.last_step, "base_lrs": list(self.base_lrs)}

    def load_state_dict(self, state_dict):
        """Takes over what state_dict() returned, and sets the rates."""
        missing = {"last_step", "base_lrs"} - set(state_dict)
        if missing:
            raise ValueError(f"load_state_dict of {type(self).__name__}: there is no {sorted(missing)[0]!r}.")
        own = set(self.state_dict())
        unknown = [name for name in state_dict if name not in own]
        if unknown:
            raise ValueError(
                f"load_state_dict of {type(self).__name__}: it has no {unknown[0]!r}. It was saved by another schedule."
            )
        vars(self).update({name: list(v) if isinstance(v, list) else v for name, v in state_dict.items()})
        for group, base_lr in zip(self.optimizer.param_groups, self.base_lrs):
            group["initial_lr"] = base_lr
        self._set()


def _is_plain(value):
    return isinstance(value, (bool, int, float, str, type(None))) or (
        isinstance(value, (list, tuple)) and all(map(_is_plain, value))
    )


def at_least_one(name, what, value):
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}: {what} is {value}; it must be 1 or more.")


def per_group(name, optimizer, value):
    n = len(optimizer.param_groups)
    values = list(value) if isinstance(value, (list, tuple)) else [value] * n
    if len(values) != n:
        raise ValueError(f"{name}: {len(values)} values for {n} groups of parameters. Give one for each.")
    return values
