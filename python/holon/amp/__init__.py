"""Mixed precision: `autocast` runs products in bfloat16 (or float16) and sums in float32;
`GradScaler` keeps the small gradients of float16 from becoming 0, `DelayedScaling` the values of float8 in range."""

from .autocast_mode import (
    autocast,
    clear_autocast_cache,
    custom_bwd,
    custom_fwd,
    get_autocast_dtype,
    is_autocast_enabled,
)
from .float8_recipe import DelayedScaling
from .grad_scaler import GradScaler, StaticGradScaler

__all__ = [
    "DelayedScaling",
    "GradScaler",
    "StaticGradScaler",
    "autocast",
    "clear_autocast_cache",
    "custom_bwd",
    "custom_fwd",
    "get_autocast_dtype",
    "is_autocast_enabled",
]


def __getattr__(name):
    from .._missing import error

    raise error("amp", name, __all__)
