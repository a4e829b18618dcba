"""What modules share whose forward is one function: the constructor keeps that function's options as attributes."""

import inspect

from .. import _C
from . import functional as F
from .module import Module

REQUIRED = inspect.Parameter.empty


class FunctionModule(Module):
    """A module whose forward is the function `_function` of nn.functional, called with `_options`: the names of the
    constructor's arguments, in order, with their defaults. Tensors among them become buffers."""

    _function: str | None = None
    _options: dict[str, object] = {}
    _shown: tuple[str, ...] | None = None  # the options that repr shows; by default all, inplace only where it is True

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "_options" in cls.__dict__ and "__init__" not in cls.__dict__:
            kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
            cls.__signature__ = inspect.Signature(
                [inspect.Parameter(name, kind, default=default) for name, default in cls._options.items()]
            )

    def __new__(cls, *args, **kwargs):
        # A function of this name, called with blobs: nn.MSELoss(input, target) in a job function.
        for value in (*args, *kwargs.values()):
            if hasattr(type(value), "__holon_function__"):
                return type(value).__holon_function__(cls, args, kwargs)
        return super().__new__(cls)

    def __init__(self, *args, **kwargs):
        super().__init__()
        signature = inspect.Signature(
            [
                inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)
                for name, default in self._options.items()
            ]
        )
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}: {error}; its arguments are {signature}.") from None
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            if isinstance(value, _C.Tensor):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, *inputs, **named):
        return getattr(F, self._function)(*inputs, **named, **{name: getattr(self, name) for name in self._options})

    def extra_repr(self):
        shown = [n for n in self._options if n != "inplace"] if self._shown is None else self._shown
        texts = [f"{name}={getattr(self, name)!r}" for name in shown]
        if getattr(self, "inplace", False):
            texts.append("inplace=True")
        return ", ".join(texts)
