"""Recording of ops on blobs, and replay of what was recorded on tensors.

    @op
    def leaky_relu(x, alpha=0.2):
        return F.leaky_relu(x, alpha)

Called with blobs inside a job function the op records itself and returns blobs; each rank then calls the plain
function (leaky_relu.fn) on its tensors. The function must be pure in its tensors; tensors that it makes itself take
creation().
"""

import threading
from functools import wraps
from typing import Any

from holon import _C

from .blob import Blob

# Names of holon's ops to the older functions that take their place where a blob is among the arguments.
overrides: dict = {}

_ranks = threading.local()


def creation():
    """Keyword arguments (placement, sbp) for a tensor that an op's function makes: {} where tensors are local."""
    placement = getattr(_ranks, "placement", None)
    return {} if placement is None else {"placement": placement, "sbp": _C.sbp.broadcast}


class placed:
    """Within this block of a rank's replay creation() says this placement; None: tensors are local."""

    def __init__(self, placement):
        self._placement = placement

    def __enter__(self):
        self._before = getattr(_ranks, "placement", None)
        _ranks.placement = self._placement

    def __exit__(self, *_):
        _ranks.placement = self._before


class Node:
    """One recorded op. spread: called once for each part of streams among its arguments, which have so many parts; else
    its function takes lists of parts, and parts is how many there are of its result."""

    def __init__(self, fn, args, kwargs, name, scope, spread, parts):
        self.fn, self.args, self.kwargs, self.name, self.scope = fn, args, kwargs, name, scope
        self.spread, self.parts = spread, parts
        self.site = _C.user_line()
        self.outputs = None


def map_leaves(tree, kind, f):
    """tree with f(leaf) in place of each leaf of this type, in lists, tuples and dicts."""
    if isinstance(tree, kind):
        return f(tree)
    if isinstance(tree, dict):
        return {k: map_leaves(v, kind, f) for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        items = [map_leaves(v, kind, f) for v in tree]
        if isinstance(tree, list):
            return items
        return type(tree)(*items) if hasattr(tree, "_fields") else tuple(items)
    return tree


def leaves(tree, kind):
    found = []
    map_leaves(tree, kind, found.append)
    return found


def _no_0d(t):
    """There are no blobs without axes."""
    return t.reshape(1) if t.dim() == 0 else t


def apply(fn, args, kwargs):
    """fn's result as the older interface has it:
    structure as returned, named tuples as plain ones, no tensor without axes."""
    out = fn(*args, **kwargs)
    if isinstance(out, tuple) and type(out) is not tuple:
        out = tuple(out)
    return map_leaves(out, _C.Tensor, _no_0d)


class Meta:
    """What is known of a tensor beforehand."""

    def __init__(self, shape, dtype):
        self.shape, self.dtype = shape, dtype


class _Front:
    """What the core's Graph calls while it captures: the way to run ops on tensors that have no memory."""

    def __init__(self, run):
        self.run = run

    def begin(self):
        pass

    def build(self, args, kwargs):
        self.result = self.run()
        raise _Done

    def end(self):
        pass


class _Done(Exception):
    pass


def infer(fn, args, kwargs):
    """What fn returns for blobs, with Meta in place of tensors. Nothing is computed."""

    def run():
        with placed(None):
            inputs = {}

            def symbol(blob):
                if id(blob) not in inputs:
                    inputs[id(blob)] = _C.ops["empty"](*blob.shape, dtype=blob.dtype)
                return inputs[id(blob)]

            out = apply(fn, map_leaves(args, Blob, symbol), map_leaves(kwargs, Blob, symbol))
            return map_leaves(out, _C.Tensor, lambda t: Meta(tuple(t.shape), t.dtype))

    front = _Front(run)
    try:
        _C.Graph("a job function").compile((), {}, front)
    except _Done:
        return front.result
    raise AssertionError("a capture went on after its end")


def record(fn, args, kwargs, op_name, name=None, spread=True, parts=None, metas=None, placement=None):
    """Notes the call in the current job and returns blobs in the nesting of fn's result.
    metas: the result's, where fn is not to be asked.
    placement: the scope's, where it is not the current one."""
    from . import job

    current = job.current(op_name)
    blobs = leaves((args, kwargs), Blob)
    for b in blobs:
        if b._job is not current:
            raise ValueError(
                f"{op_name}: {b!r} belongs to the job function {b._job.name}; this is {current.name}. "
                "Share values by variables."
            )
    streams = {b._parts for b in blobs if b._parts}
    if spread and len(streams) > 1:
        raise ValueError(
            f"{op_name}: its inputs are streams of {' and '.join(map(str, sorted(streams)))} parts. "
            "All must have the same number: use unpack, pack, repeat or acc."
        )
    if spread:
        parts = next(iter(streams), None)
    name = current.unique_name(name or op_name, given=name is not None)
    scope = current.scope() if placement is None else current.scope().changed(placement=placement)
    node = Node(fn, args, kwargs, name, scope, spread, parts)
    if metas is None:
        metas = infer(fn, args, kwargs)
    n_out = len(leaves(metas, Meta))

    def blob(meta):
        at = len(made)
        made.append(
            Blob(current, meta.shape, meta.dtype, name if n_out == 1 else f"{name}_{at}", node.scope.placement, parts)
        )
        return made[-1]

    made = []
    node.outputs = map_leaves(metas, Meta, blob)
    current.nodes.append(node)
    return node.outputs


def op(function: Any = None, *, training: bool = False, overrides: Any = None) -> Any:
    """Makes an op of the older interface of a function on tensors; see the top. training: the function gets the keyword
    `training`, whether the job trains. overrides: the name of the op of holon's, or a list, which this one replaces for
    blobs."""

    def decorate(fn):
        op_name = fn.__name__

        @wraps(fn)
        def call(*args, name=None, **kwargs):
            if training:
                from . import job

                kwargs["training"] = job.current(op_name).type == "train"
            return record(fn, args, kwargs, op_name, name)

        call.fn = fn
        for old in [overrides] if isinstance(overrides, str) else overrides or ():
            _overridden(old, call)
        return call

    return decorate if function is None else decorate(function)


def computes(fn: Any) -> Any:
    """Makes a function on blobs an op that replays as `fn` on tensors, where the two are not one function."""

    def decorate(call):
        call.fn = fn
        return call

    return decorate


def _overridden(name, call):
    overrides[name] = call


def call_op(function, args, kwargs):
    """An op of holon's with a blob among its arguments."""
    from . import load_ops

    load_ops()
    name = function.__name__
    if isinstance(function, type):  # one of nn's classes, whose name was a function's
        from . import nn

        if not hasattr(nn, name):
            raise TypeError(
                f"nn.{name}: takes a module's options, not blobs. "
                "Modules do not work in job functions: use flow.layers and functions of flow.nn."
            )
        return getattr(nn, name)(*args, **kwargs)
    if name in overrides:
        return overrides[name](*args, **kwargs)
    if name.endswith("_") and name[:-1] in _C.ops:
        raise TypeError(f"{name}: a blob cannot be changed in place. Use {name[:-1]}(), or assign(variable, value).")
    given = kwargs.pop("name", None)
    return record(function, args, kwargs, name, given)
