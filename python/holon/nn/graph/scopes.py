"""Calls of modules while a graph is captured:
each is a scope of the graph, and an error says in which it was raised."""

import traceback
from pathlib import Path
from threading import get_ident

from ... import _C
from .. import hooks
from .. import module as modules

_PACKAGE = str(Path(__file__).resolve().parents[2])
# The captures that are open, by thread: ranks may be threads.
_open: dict[int, object] = {}


class Scopes:
    """For a `with` block: calls of modules belong to their paths.
    roots: (name, module) pairs; block_of(module): its GraphModule or None."""

    def __init__(self, graph, roots, block_of):
        self.graph, self.paths, self.seen = graph, {}, {}
        self._block_of = block_of
        self._in_cpp, self._open, self._failed = {}, [], ""
        for name, root in roots:
            for path, module in root.named_modules(prefix=name):
                self.paths.setdefault(id(module), path)
                if (core := module.__dict__.get("_cpp")) is not None:
                    self._in_cpp[core.identity] = module

    def __enter__(self):
        _open[get_ident()] = self
        modules._captured_call = _call
        return self

    def __exit__(self, *error):
        del _open[get_ident()]
        if not _open:
            modules._captured_call = None

    def call(self, module, args, kwargs):
        path = self.paths.get(id(module)) or type(module).__name__
        block = self._block_of(module)
        self.seen[id(module)] = module
        stage = block._stage_id if block is not None else None
        _C.capture_push(path, -1 if stage is None else stage)
        try:
            if block is not None and block._stage_placement is not None:
                args, kwargs = (
                    _redistributed(args, block._stage_placement),
                    _redistributed(kwargs, block._stage_placement),
                )
            return hooks.call(module, args, kwargs)
        except Exception as error:
            explain(error, self.graph, self._failed or path)
            raise
        finally:
            _C.capture_pop()

    def enter(self, identity, x):
        """A call of a module in C++ begins; returns its first input, on its stage."""
        module = self._in_cpp.get(identity)
        block = self._block_of(module) if module is not None else None
        path = self.paths.get(id(module), self._open[-1] if self._open else "")
        self._open.append(path)
        stage = block._stage_id if block is not None else None
        _C.capture_push(path, -1 if stage is None else stage)
        if block is not None and block._stage_placement is not None:
            return _redistributed(x, block._stage_placement)
        return x

    def leave(self, failed):
        path = self._open.pop()
        if failed and not self._failed:
            self._failed = path
        _C.capture_pop()


def _call(module, args, kwargs):
    scopes = _open.get(get_ident())
    return scopes.call(module, args, kwargs) if scopes is not None else hooks.call(module, args, kwargs)


def _redistributed(value, placement):
    """The value with its global tensors on the placement."""
    if isinstance(value, _C.Tensor):
        return _C.on_stage(value, placement)
    if isinstance(value, dict):
        return (
            type(value)((key, _redistributed(item, placement)) for key, item in value.items())
            if type(value) is dict
            else value
        )
    if type(value) in (list, tuple):
        return type(value)(_redistributed(item, placement) for item in value)
    return value


def explain(error, graph, path):
    """Adds to an exception's text, once, where in the user's program it comes from."""
    if getattr(error, "_explained", False) or not (error.args and isinstance(error.args[0], str)):
        return
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_PACKAGE)]
    line = f"{lines[-1].filename}:{lines[-1].lineno}, " if lines else ""
    where = f"in {path}, " if path else ""
    try:
        error.args = (f"{error.args[0]} ({line}{where}while {graph} was captured)", *error.args[1:])
        error._explained = True
    except (AttributeError, TypeError):
        pass  # an exception that takes no attributes keeps its own text
