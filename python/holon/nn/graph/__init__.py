"""nn.Graph: a training step captured once and run as one compiled step; GraphModule: a module as a graph sees it."""

from .config import GraphConfig
from .graph import Graph
from .module import GraphModule

__all__ = ["Graph", "GraphConfig", "GraphModule"]


def __getattr__(name):
    from ..._missing import error

    raise error("nn.graph", name, __all__)
