"""What products in float8 are scaled by."""

from collections.abc import Iterable

from .. import _C


class DelayedScaling(_C.DelayedScaling):
    """Scales products by a model's parameters by the largest values (amax) of earlier steps, as the recipe of this name
    of NVIDIA's Transformer Engine: `autocast(dtype=float8_e4m3fn, recipe=DelayedScaling(model))`, and `update()` once
    after each step.

    model: a module, or pairs of names and parameters. amax_history_len: steps whose amaxes count. amax_compute_algo:
    "max", the largest of them, or "most_recent". A scale is the power of two that brings it closest to the dtype's
    largest number and not above it, divided by 2 ** margin; values beyond the range become the largest number. Before a
    first step scales are 1. Products without such a parameter are scaled by their own values.
    """

    def __init__(self, model, margin=0, amax_history_len=1024, amax_compute_algo="max"):
        named = model.named_parameters() if hasattr(model, "named_parameters") else model
        if not isinstance(named, Iterable):
            raise TypeError(
                f"DelayedScaling: model is a {type(model).__name__}, not a module or pairs of names and parameters."
            )
        super().__init__(dict(named), margin, amax_history_len, amax_compute_algo)
