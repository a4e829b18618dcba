"""GraphModule: what a graph keeps about a module."""

from threading import local

from ... import _C
from ..module import Module


class GraphModule:
    """A module as a graph sees it: `module.to(nn.graph.GraphModule)` gives it, `.to(nn.Module)` the module back.

    Taken inside a graph's __init__ it belongs to that graph; elsewhere it counts for every graph that has no
    settings for the module. Calls and attributes are the module's.
    """

    _fields = ("_module", "_name", "_stage_id", "_stage_placement", "_activation_checkpointing")

    def __init__(self, module):
        for key, value in zip(self._fields, (module, "", None, None, None)):
            object.__setattr__(self, key, value)

    def set_stage(self, stage_id=None, placement=None):
        """The module's ops belong to this stage of a pipeline.
        placement: where its global inputs are brought, under their own sbp where that fits, else broadcast."""
        if stage_id is not None and (not isinstance(stage_id, int) or isinstance(stage_id, bool) or stage_id < 0):
            raise ValueError(f"set_stage: stage_id is {stage_id!r}; it must be an int from 0 on.")
        if placement is not None and not isinstance(placement, _C.placement):
            raise TypeError(f"set_stage: placement must be a placement, got {type(placement).__name__}.")
        self._put(_stage_id=stage_id, _stage_placement=placement)

    @property
    def name(self):
        """The module's path in the graph, "" where it is in none yet."""
        return self._name

    @property
    def stage_id(self):
        return self._stage_id

    @stage_id.setter
    def stage_id(self, value):
        self.set_stage(value, self._stage_placement)

    @property
    def stage_placement(self):
        return self._stage_placement

    @stage_placement.setter
    def stage_placement(self, value):
        self.set_stage(self._stage_id, value)

    @property
    def activation_checkpointing(self):
        """Whether what the module computes inside is computed again in backward instead of kept."""
        return bool(self._activation_checkpointing)

    @activation_checkpointing.setter
    def activation_checkpointing(self, on):
        self._put(_activation_checkpointing=bool(on))

    def to(self, *args, **kwargs):
        """The module for nn.Module, this for GraphModule; else as Module.to."""
        if len(args) == 1 and args[0] is Module:
            return self._module
        if len(args) == 1 and is_graph_module(args[0]):
            return self
        self._module.to(*args, **kwargs)
        return self

    def __call__(self, *args, **kwargs):
        return self._module(*args, **kwargs)

    def __getattr__(self, name):
        if name in self._fields or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._module, name)

    def __setattr__(self, name, value):
        if name in ("stage_id", "stage_placement", "activation_checkpointing"):
            object.__setattr__(self, name, value)
        else:
            setattr(self._module, name, value)

    def __repr__(self):
        return f"GraphModule({self._module!r}){self._text()}"

    def _put(self, **values):
        for key, value in values.items():
            object.__setattr__(self, key, value)
        _C.note_module_change()

    def _key(self):
        return self._stage_id, self._stage_placement, self._activation_checkpointing

    def _text(self):
        """ " stage 0 on ..." for what is set."""
        text = f" stage {self._stage_id}" if self._stage_id is not None else ""
        if self._stage_placement is not None:
            text += f" on {self._stage_placement}"
        return text + (" recomputed" if self._activation_checkpointing else "")


class _Construction(local):
    """The graphs whose __init__ runs in this thread, innermost last."""

    def __init__(self):
        self.graphs = []


under_construction = _Construction()


def is_graph_module(value):
    """Whether the value is GraphModule or a class derived from it."""
    return isinstance(value, type) and issubclass(value, GraphModule)


def block_of(module, kind=GraphModule):
    """The GraphModule of a module: of the graph whose __init__ runs, or the module's own, which is of this kind if it
    does not exist yet."""
    if under_construction.graphs:
        blocks = under_construction.graphs[-1].__dict__.get("_blocks")
        if blocks is None:
            raise RuntimeError(
                f"{type(under_construction.graphs[-1]).__name__}: call super().__init__() first in its __init__."
            )
        if module not in blocks:
            blocks[module] = under_construction.graphs[-1].module_class(module)
            under_construction.graphs[-1]._name_blocks()
        return blocks[module]
    block = module.__dict__.get("_graph_block")
    if block is None:
        block = module.__dict__["_graph_block"] = kind(module)
    return block
