"""Limits of gradients."""

from ... import _C


def _tensors(parameters):
    return [parameters] if isinstance(parameters, _C.Tensor) else list(parameters)


def clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, fused=True, foreach=None):
    """Scales the gradients so that the norm of all of them together is at most max_norm; returns the norm before.

    norm_type: any number, 0 (how many are not 0), inf or -inf. Right for any mixture of layouts: every element counts
    once. Collective where a parameter is global. The norm is a tensor on the gradients' device, for whose work the
    host waits only with error_if_nonfinite. fused and foreach are accepted and change nothing.

    In the build() of an nn.Graph, after backward(), it is part of the step: what is clipped are the gradients of all
    micro-batches, after a division by the loss scale and before the update. The norm is a tensor to return from
    build(); the graph keeps it as well (grad_norms()).
    """
    return _C.clip_grad_norm(_tensors(parameters), float(max_norm), float(norm_type), error_if_nonfinite)


def clip_grad_value_(parameters, clip_value, foreach=None):
    """Brings every element of the gradients to at least -clip_value and at most clip_value;
    in the build() of an nn.Graph as clip_grad_norm_() does."""
    _C.clip_grad_value(_tensors(parameters), float(clip_value))
