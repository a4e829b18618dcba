"""What programs for OneFlow find in an nn.Graph around its modules. Here a graph holds the modules themselves, and a
tensor of a graph is a tensor: all classes but GraphModule are for isinstance() only."""

from holon.nn.graph.module import block_of, under_construction

from holon import _C
from holon.nn import Module
from holon.nn import graph as core

__all__ = ["Block", "GraphModule", "GraphTensor", "Proxy", "ProxyModule"]


class GraphModule(core.GraphModule):
    """Holon's, with what OneFlow's tells about itself."""

    @property
    def name_prefix(self):
        """What precedes the last part of the name: "blocks." of "blocks.0"."""
        head, dot, _ = self.name.rpartition(".")
        return head + dot

    @property
    def type(self):
        return "MODULE"

    @property
    def scope(self):
        """The name under which ops of the module are shown."""
        return self.name or None

    def debug(self, v_level=-1, **options):
        """Accepted; the debug() of the graph shows all of it."""


class _InGraph:
    """An attribute that modules have in the __init__ of a graph, as in OneFlow 0.7 and 0.8.
    What a module has under this name itself comes first."""

    def __init__(self, name, get):
        self._name, self._get = name, get

    def __get__(self, module, owner=None):
        graphs = under_construction.graphs
        if module is None or not graphs or not issubclass(graphs[-1].module_class, GraphModule):
            raise AttributeError(self._name)
        try:
            return Module.__getattr__(module, self._name)
        except AttributeError:
            return self._get(module)


Module.config = _InGraph("config", block_of)  # type: ignore[attr-defined]
Module.origin = _InGraph("origin", lambda module: module)  # type: ignore[attr-defined]


class _ProxyType(type):
    def __instancecheck__(cls, value):
        return isinstance(value, (core.GraphModule, Module))


class Proxy(metaclass=_ProxyType):
    """A module of a graph: isinstance(graph.model, Proxy)."""


# What OneFlow 0.7 called it, and 0.9 the kind for modules.
Block = ProxyModule = Proxy


class _GraphTensorType(type):
    def __instancecheck__(cls, value):
        return isinstance(value, _C.Tensor)


class GraphTensor(metaclass=_GraphTensorType):
    """A tensor of a graph: isinstance(x, GraphTensor)."""
