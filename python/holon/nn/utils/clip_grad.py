"""Limits of gradients."""
from ... import _C


def clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False):
    """Scales the gradients so that the norm of all of them together is at most max_norm; returns the norm before.

    Right for any mixture of layouts: every element counts once. Collective where a parameter is global.
    """
    if norm_type != 2:
        raise ValueError(f"clip_grad_norm_: norm_type is {norm_type}; the 2-norm is the one that there is.")
    parameters = [parameters] if isinstance(parameters, _C.Tensor) else list(parameters)
    return _C.clip_grad_norm(parameters, float(max_norm), error_if_nonfinite)
