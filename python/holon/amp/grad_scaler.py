"""Scaling of losses, so that small gradients do not become 0 in float16, and of gradients back."""

import math
import weakref

from .. import _C


class GradScaler:
    """Multiplies a loss by a scale that adapts to the gradients' range:
    `scale(loss).backward()`, `step(optimizer)`, `update()`.

    After gradients that are not finite the step is left out and the scale falls by backoff_factor; after
    growth_interval good steps in a row it grows by growth_factor. For global gradients all ranks decide alike.
    """

    def __init__(
        self,
        init_scale=2.0**16,
        growth_factor=2.0,
        backoff_factor=0.5,
        growth_interval=2000,
        enabled=True,
        device="cpu",
    ):
        if isinstance(init_scale, str):  # PyTorch's newer form names the device first
            raise TypeError("GradScaler takes init_scale first; give the device by name: GradScaler(device='cpu').")
        if not init_scale > 0:
            raise ValueError(f"GradScaler: init_scale is {init_scale}; it must be above 0.")
        if not growth_factor > 1:
            raise ValueError(f"GradScaler: growth_factor is {growth_factor}; it must be above 1.")
        if not 0 < backoff_factor < 1:
            raise ValueError(f"GradScaler: backoff_factor is {backoff_factor}; it must be between 0 and 1.")
        self._enabled = enabled
        self._scale, self._good_steps = float(init_scale), 0
        self._growth_factor, self._backoff_factor, self._growth_interval = (
            growth_factor,
            backoff_factor,
            growth_interval,
        )
        # Optimizers whose gradients were looked at since the last update:
        # whether they are finite, and whether step() was called.
        self._seen = weakref.WeakKeyDictionary()

    def scale(self, outputs):
        """Returns the loss (or losses, in lists and tuples) times the scale."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, _C.Tensor):
            return outputs * self._scale
        if isinstance(outputs, (list, tuple)):
            return type(outputs)(self.scale(x) for x in outputs)
        raise TypeError(f"GradScaler.scale takes a tensor or a list of them, not {type(outputs).__name__}.")

    def unscale_(self, optimizer):
        """Divides the gradients of the optimizer's parameters by the scale, once before each step;
        collective for global ones."""
        if not self._enabled:
            return
        if optimizer in self._seen:
            raise RuntimeError(
                "unscale_() was called twice (or after step()) for this optimizer since the last update()."
            )
        params = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        self._seen[optimizer] = {"finite": _C.scale_grads(params, 1.0 / self._scale), "stepped": False}

    def step(self, optimizer, *args, **kwargs):
        """Calls optimizer.step() if its gradients are finite; unscales them first if unscale_() has not."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs:
            raise RuntimeError("GradScaler.step takes no closure: the gradients must exist already.")
        if optimizer not in self._seen:
            self.unscale_(optimizer)
        seen = self._seen[optimizer]
        if seen["stepped"]:
            raise RuntimeError("step() was called twice for this optimizer since the last update().")
        seen["stepped"] = True
        return optimizer.step(*args, **kwargs) if seen["finite"] else None

    def update(self, new_scale=None):
        """Sets the scale for the next step: to new_scale, or after what the gradients of this one were."""
        if not self._enabled:
            return
        if new_scale is not None:
            self._scale = float(new_scale)
            if not self._scale > 0:
                raise ValueError(f"GradScaler.update: the scale must be above 0, found {self._scale}.")
        elif not self._seen:
            raise RuntimeError("update() was called before any step() or unscale_().")
        elif all(s["finite"] for s in self._seen.values()):
            self._good_steps += 1
            if self._good_steps >= self._growth_interval:
                grown = self._scale * self._growth_factor
                self._scale, self._good_steps = grown if math.isfinite(grown) else self._scale, 0
        else:
            self._scale, self._good_steps = self._scale * self._backoff_factor, 0
        self._seen.clear()

    def _stepped_by_graph(self, finite):
        """What nn.Graph has found out of a step: as step() and update() of an eager one."""
        self._seen = {None: {"finite": finite, "stepped": True}}
        try:
            self.update()
        finally:
            self._seen = weakref.WeakKeyDictionary()

    def get_scale(self):
        """Returns the scale; 1.0 where scaling is turned off."""
        return self._scale if self._enabled else 1.0

    def is_enabled(self):
        return self._enabled

    def get_growth_factor(self):
        return self._growth_factor

    def set_growth_factor(self, new_factor):
        self._growth_factor = new_factor

    def get_backoff_factor(self):
        return self._backoff_factor

    def set_backoff_factor(self, new_factor):
        self._backoff_factor = new_factor

    def get_growth_interval(self):
        return self._growth_interval

    def set_growth_interval(self, new_interval):
        self._growth_interval = new_interval

    def state_dict(self):
        """Returns what load_state_dict() needs; nothing where scaling is turned off."""
        if not self._enabled:
            return {}
        return {
            "scale": self._scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._good_steps,
        }

    def load_state_dict(self, state_dict):
        if not self._enabled:
            return
        wanted = self.state_dict()
        for name in wanted:
            if name not in state_dict:
                raise RuntimeError(
                    f"load_state_dict of {type(self).__name__}: there is no {name!r}. It was saved from one that was "
                    "turned off, or is not a state of it."
                )
        self._scale, self._good_steps = float(state_dict["scale"]), state_dict["_growth_tracker"]
        self._growth_factor, self._backoff_factor = state_dict["growth_factor"], state_dict["backoff_factor"]
        self._growth_interval = state_dict["growth_interval"]


class StaticGradScaler(GradScaler):
    """A GradScaler whose scale stays what it is; steps with gradients that are not finite are left out."""

    def __init__(self, scale_factor=2.0**16, enabled=True):
        super().__init__(init_scale=scale_factor, enabled=enabled)

    def update(self, new_scale=None):
        if new_scale is not None:
            return super().update(new_scale)
        if self._enabled and not self._seen:
            raise RuntimeError("update() was called before any step() or unscale_().")
        self._seen.clear()
