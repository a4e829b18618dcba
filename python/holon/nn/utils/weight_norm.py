"""A weight as a direction and a length, learned apart."""

from ... import _C
from ..parameter import Parameter


class _WeightNorm:
    """The hook that makes the weight of its two parts before each forward."""

    def __init__(self, name, dim):
        self.name, self.dim = name, dim

    def length(self, v):
        """The lengths of v, one for each index of dim, or one for all, without axes."""
        if self.dim is None:
            return _C.ops["sum"](v * v).sqrt()
        return _C.ops["sum"](v * v, [a for a in range(v.ndim) if a != self.dim], True).sqrt()

    def weight(self, module):
        v = getattr(module, self.name + "_v")
        return v * (getattr(module, self.name + "_g") / self.length(v))

    def __call__(self, module, args):
        setattr(module, self.name, self.weight(module))


def weight_norm(module, name="weight", dim=0):
    """Puts <name>_g, the lengths (one for each index of dim; None or -1: one for all, without axes), and <name>_v, the
    direction, in the place of a parameter of the module; returns the module."""
    if any(isinstance(h, _WeightNorm) and h.name == name for h, _ in module._forward_pre_hooks.values()):
        raise RuntimeError(f"weight_norm: {name} of {type(module).__name__} has one already.")
    weight = module.get_parameter(name)
    if dim is not None and not -weight.ndim <= dim < weight.ndim:
        raise IndexError(f"weight_norm: dim {dim} is out of range for {name} of shape {list(weight.shape)}.")
    hook = _WeightNorm(name, None if dim in (None, -1) else dim % weight.ndim)
    delattr(module, name)
    module.register_parameter(name + "_g", Parameter(hook.length(weight.detach())))
    module.register_parameter(name + "_v", Parameter(weight))
    setattr(module, name, hook.weight(module))
    module.register_forward_pre_hook(hook)
    return module


def remove_weight_norm(module, name="weight"):
    """Makes one parameter again of what weight_norm made two; returns the module."""
    for number, (hook, _) in list(module._forward_pre_hooks.items()):
        if isinstance(hook, _WeightNorm) and hook.name == name:
            weight = hook.weight(module).detach()
            del module._forward_pre_hooks[number]
            for part in (name, name + "_g", name + "_v"):
                delattr(module, part)
            module.register_parameter(name, Parameter(weight))
            return module
    raise ValueError(f"remove_weight_norm: {name} of {type(module).__name__} has none.")
