"""Modules, layers and losses, as in PyTorch; those with parameters can be made global at once (placement=, sbp=)."""

from . import (
    activation,
    attention,
    containers,
    conv,
    distance,
    dropout,
    functional,
    init,
    linear,
    loss,
    module,
    norm,
    padding,
    parameter,
    pooling,
    rnn,
    sparse,
    transformer,
    utils,
    vision,
)
from .module import Module
from .parameter import Parameter

_FAMILIES = (
    linear,
    sparse,
    conv,
    pooling,
    norm,
    activation,
    loss,
    dropout,
    padding,
    vision,
    distance,
    attention,
    transformer,
    rnn,
    containers,
)

# Every public class of a family of layers is one of nn's names.
globals().update(
    {
        name: value
        for family in _FAMILIES
        for name, value in vars(family).items()
        if isinstance(value, type)
        and issubclass(value, Module)
        and value.__module__ == family.__name__
        and not name.startswith("_")
    }
)

__all__ = sorted(
    name
    for name in globals()
    if not name.startswith("_")
    and name not in {f.__name__.rpartition(".")[2] for f in _FAMILIES}
    and name not in ("module", "parameter")
)

# There is no function of this name here; the module is found by import.
del dropout


def __getattr__(name):
    if name in ("graph", "Graph"):
        # Loaded on first use, as it needs optimizers.
        from importlib import import_module

        module = import_module(f"{__name__}.graph")
        return module if name == "graph" else module.Graph
    if name == "parallel":
        from importlib import import_module

        return import_module(f"{__name__}.parallel")
    from .._missing import error

    raise error("nn", name, __all__)
