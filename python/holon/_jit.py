"""jit: a function of tensors, captured once for each kind of arguments and run as compiled."""

from functools import partial, update_wrapper

from . import _C
from .nn.graph.graph import Graph
from .nn.module import Module


def jit(function=None, **options):
    """Compiles a function of tensors, a module, or, as a decorator in a class, a method: `fast = holon.jit(f)`.

    The function is captured at the first call with such arguments: shapes, dtypes, placements, sbps, and the values of
    what is not a tensor. Gradients are not recorded: if a result would require grad, the call raises. `fast.graph` is
    the graph beneath, with its config; options are those of its config: jit(f, enable_amp=True).
    """
    if function is None:
        return partial(jit, **options)
    if not callable(function):
        raise TypeError(f"jit: takes a function, a module or a method, got {type(function).__name__}.")
    return _Compiled(function, options)


class _FunctionGraph(Graph):
    def __init__(self, function, name):
        super().__init__(name)
        self.__dict__["_function"] = function
        owner = function if isinstance(function, Module) else getattr(function, "__self__", None)
        if isinstance(owner, Module):
            self._members[""] = owner

    def build(self, *args, **kwargs):
        self._seen.update((id(m), m) for a in (*args, *kwargs.values()) if isinstance(a, Module) for m in a.modules())
        result = self._function(*args, **kwargs)
        if _C.is_grad_enabled() and any(t.requires_grad for t in _tensors(result)):
            raise RuntimeError(
                f"jit: a result of {self.name} requires grad, but a compiled function records no gradients. Call it "
                "under holon.no_grad(), detach() what comes in, or call the function itself; "
                "to train, derive a class from nn.Graph."
            )
        return result


class _Compiled:
    """What jit() returns: called as the function."""

    def __init__(self, function, options):
        self._function, self._options, self._graph = function, options, None
        update_wrapper(self, function)

    @property
    def graph(self):
        """The graph beneath, with plan(), captured(), config."""
        if self._graph is None:
            self._graph = _FunctionGraph(
                self._function, getattr(self._function, "__qualname__", type(self._function).__name__)
            )
            for name, value in self._options.items():
                getattr(self._graph.config, name)(value)
        return self._graph

    def __call__(self, *args, **kwargs):
        # Inside another capture the ops of the function become a part of that graph.
        if _C.capture_open():
            return self._function(*args, **kwargs)
        return self.graph(*args, **kwargs)

    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        key = f"_jit_{self._function.__name__}"
        bound = instance.__dict__.get(key)
        if bound is None:
            bound = instance.__dict__[key] = _Compiled(self._function.__get__(instance, owner), self._options)
        return bound

    def __repr__(self):
        return f"jit({self._function!r})"


def _tensors(value):
    if isinstance(value, _C.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
