"""nn.Graph with OneFlow's names: holon.nn.Graph with what programs for OneFlow call besides."""

import holon
from holon.nn import graph as core

from ...missing import GRAPH
from . import util
from .config import GraphConfig
from .module import Block, GraphModule, GraphTensor, Proxy, ProxyModule

__all__ = ["Block", "Graph", "GraphConfig", "GraphModule", "GraphTensor", "Proxy", "ProxyModule", "util"]


class Graph(core.Graph):
    __doc__ = core.Graph.__doc__

    config_class = GraphConfig
    module_class = GraphModule

    _compile = build_graph = core.Graph.compile

    @staticmethod
    def trace(function):
        """As oneflow.jit."""
        return holon.jit(function)

    def debug(
        self, v_level=-1, *, ranks=None, max_py_stack_depth=2, only_user_py_stack=True, op_repr_with_py_stack=False
    ):
        """As Holon's. Its other options have no effect."""
        super().debug(v_level, ranks=ranks)

    def __getattr__(self, name):
        if name in GRAPH:
            raise AttributeError(f"{type(self).__name__} has no attribute '{name}': {GRAPH[name]}")
        return super().__getattr__(name)


def __getattr__(name):
    from holon._missing import error

    raise error("nn.graph", name, __all__)
