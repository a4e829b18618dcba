"""nn.Graph: a training step captured once and run as one compiled step; GraphModule: a module as a graph sees it."""

from . import util
from .config import GraphConfig
from .graph import Graph
from .module import GraphModule
from .proxy import Block, GraphTensor, Proxy, ProxyModule

__all__ = ["Block", "Graph", "GraphConfig", "GraphModule", "GraphTensor", "Proxy", "ProxyModule", "util"]


def __getattr__(name):
    from ..._missing import error

    raise error("nn.graph", name, __all__)
