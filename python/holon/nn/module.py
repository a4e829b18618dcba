"""Module: the base class of layers and models, and Parameter, a tensor that a module owns and an optimizer changes."""
from .. import _C
from ..autograd import no_grad

Tensor = _C.Tensor


class Parameter(Tensor):
    """A tensor that becomes part of a module when it is assigned to one of its attributes.

    Shares memory with `data`, outside of the recorded graph.
    """

    def __new__(cls, data, requires_grad=True):
        if not isinstance(data, Tensor):
            raise TypeError(f"a Parameter is made from a tensor, not from {type(data).__name__}: write nn.Parameter(holon.tensor(...)).")
        self = super().__new__(cls, data.detach())
        self.requires_grad = requires_grad
        return self

    def __repr__(self):
        return "Parameter containing:\n" + super().__repr__()


class RemovableHandle:
    """Takes a hook away again: `remove()`."""

    def __init__(self, hooks, hook):
        self._hooks = hooks
        hooks[id(self)] = hook

    def remove(self):
        self._hooks.pop(id(self), None)


class LoadResult(tuple):
    """(missing_keys, unexpected_keys) of load_state_dict."""

    missing_keys = property(lambda self: self[0])
    unexpected_keys = property(lambda self: self[1])

    def __repr__(self):
        if not (self[0] or self[1]):
            return "<All keys matched successfully>"
        return f"LoadResult(missing_keys={self[0]}, unexpected_keys={self[1]})"


def _indent(text):
    return text.replace("\n", "\n  ")


class Module:
    """Base class of layers and models: define `forward`, assign parameters and submodules as attributes."""

    def __init__(self):
        state = self.__dict__
        state["training"] = True
        state["_parameters"] = {}
        state["_buffers"] = {}
        state["_non_persistent_buffers"] = set()
        state["_modules"] = {}
        state["_forward_hooks"] = {}
        state["_forward_pre_hooks"] = {}

    def forward(self, *args, **kwargs):
        raise NotImplementedError(f"{type(self).__name__} has no forward: define it, as in `def forward(self, x): ...`.")

    def __call__(self, *args, **kwargs):
        if not (self._forward_hooks or self._forward_pre_hooks):
            return self.forward(*args, **kwargs)
        for hook in list(self._forward_pre_hooks.values()):
            changed = hook(self, args)
            if changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
        result = self.forward(*args, **kwargs)
        for hook in list(self._forward_hooks.values()):
            changed = hook(self, args, result)
            if changed is not None:
                result = changed
        return result

    # Attributes

    def __setattr__(self, name, value):
        if isinstance(value, Parameter):
            self._forget(name)
            self.register_parameter(name, value)
        elif isinstance(value, Module):
            self._forget(name)
            self.add_module(name, value)
        else:
            for registered, kind in (("_parameters", (Parameter,)), ("_modules", (Module,)), ("_buffers", (Tensor,))):
                items = self.__dict__.get(registered)
                if items is not None and name in items:
                    if value is not None and not isinstance(value, kind):
                        raise TypeError(
                            f"cannot assign {type(value).__name__} as '{name}' of {type(self).__name__}: it is registered as "
                            f"{kind[0].__name__}. Assign one, or None, or `del` the attribute first.")
                    items[name] = value
                    return
            object.__setattr__(self, name, value)

    def __getattr__(self, name):
        state = self.__dict__
        for registered in ("_parameters", "_buffers", "_modules"):
            items = state.get(registered)
            if items is not None and name in items:
                return items[name]
        if "_parameters" not in state:
            raise AttributeError(
                f"{type(self).__name__} has no attribute '{name}'. Call super().__init__() first in its __init__.")
        raise AttributeError(f"{type(self).__name__} has no attribute '{name}'.")

    def __delattr__(self, name):
        for registered in ("_parameters", "_buffers", "_modules"):
            if name in self.__dict__[registered]:
                del self.__dict__[registered][name]
                self._non_persistent_buffers.discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self):
        return sorted({*super().__dir__(), *self._parameters, *self._buffers, *self._modules})

    def _forget(self, name):
        """Makes the name free for a parameter or module."""
        if "_parameters" not in self.__dict__:
            raise AttributeError(
                f"cannot assign '{name}' to {type(self).__name__}: call super().__init__() first in its __init__.")
        self.__dict__.pop(name, None)
        for registered in ("_parameters", "_buffers", "_modules"):
            self.__dict__[registered].pop(name, None)

    def _check_name(self, name, items):
        if not isinstance(name, str) or not name or "." in name:
            raise KeyError(f"{type(self).__name__}: {name!r} cannot be a name here: it must be text without '.'.")
        if name not in items and hasattr(self, name):
            raise KeyError(f"{type(self).__name__} has an attribute '{name}' already.")

    def register_parameter(self, name, parameter):
        """Adds a parameter, or None for one that a variant of the layer leaves out."""
        self._check_name(name, self._parameters)
        if parameter is not None and not isinstance(parameter, Parameter):
            raise TypeError(f"'{name}' must be a Parameter or None, not {type(parameter).__name__}: wrap it as nn.Parameter(x).")
        self._parameters[name] = parameter

    def register_buffer(self, name, tensor, persistent=True):
        """Adds a tensor that belongs to the state but is not learned."""
        self._check_name(name, self._buffers)
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(f"'{name}' must be a tensor or None, not {type(tensor).__name__}.")
        self._buffers[name] = tensor
        (self._non_persistent_buffers.discard if persistent else self._non_persistent_buffers.add)(name)

    def add_module(self, name, module):
        """Adds a submodule, or None."""
        self._check_name(name, self._modules)
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"'{name}' must be a Module or None, not {type(module).__name__}.")
        self._modules[name] = module

    register_module = add_module

    # Walks

    def named_modules(self, memo=None, prefix="", remove_duplicate=True):
        """Yields (name, module) for this module and all below it."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                yield from module.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self):
        for _, module in self.named_modules():
            yield module

    def named_children(self):
        for name, module in self._modules.items():
            if module is not None:
                yield name, module

    def children(self):
        for _, module in self.named_children():
            yield module

    def _named_members(self, registered, prefix, recurse):
        seen = set()
        for path, module in self.named_modules(prefix=prefix) if recurse else [(prefix, self)]:
            for name, tensor in module.__dict__[registered].items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield f"{path}.{name}" if path else name, tensor

    def named_parameters(self, prefix="", recurse=True):
        """Yields (name, parameter), each parameter once."""
        return self._named_members("_parameters", prefix, recurse)

    def parameters(self, recurse=True):
        for _, parameter in self.named_parameters(recurse=recurse):
            yield parameter

    def named_buffers(self, prefix="", recurse=True):
        return self._named_members("_buffers", prefix, recurse)

    def buffers(self, recurse=True):
        for _, buffer in self.named_buffers(recurse=recurse):
            yield buffer

    def get_submodule(self, target):
        """Returns the module at a path such as "blocks.0.attention"."""
        module = self
        for name in target.split(".") if target else ():
            if name not in module._modules:
                raise AttributeError(f"{type(module).__name__} has no submodule '{name}' (of '{target}').")
            module = module._modules[name]
        return module

    def get_parameter(self, target):
        """Returns the parameter at a path such as "blocks.0.weight"."""
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        if name not in module._parameters:
            raise AttributeError(f"{type(module).__name__} has no parameter '{name}' (of '{target}').")
        return module._parameters[name]

    # State

    def state_dict(self, destination=None, prefix="", keep_vars=False):
        """Returns a dict from the names of parameters and persistent buffers to their tensors, detached unless keep_vars."""
        destination = {} if destination is None else destination
        for name, tensor in (*self._parameters.items(), *self._buffers.items()):
            if tensor is not None and name not in self._non_persistent_buffers:
                destination[prefix + name] = tensor if keep_vars else tensor.detach()
        for name, module in self._modules.items():
            if module is not None:
                module.state_dict(destination, f"{prefix}{name}.", keep_vars)
        return destination

    def load_state_dict(self, state_dict, strict=True):
        """Copies tensors into the parameters and buffers of the same names; global ones are boxed to their layout.

        Collective where parameters are global. Nothing is changed if a name or shape does not fit (names: if strict).
        """
        own = self.state_dict(keep_vars=True)
        missing = [name for name in own if name not in state_dict]
        unexpected = [name for name in state_dict if name not in own]
        errors = []
        if strict and missing:
            errors.append("missing: " + ", ".join(missing))
        if strict and unexpected:
            errors.append("unexpected: " + ", ".join(unexpected))
        for name, tensor in own.items():
            value = state_dict.get(name)
            if value is None:
                continue
            if not isinstance(value, Tensor):
                errors.append(f"{name} is a {type(value).__name__}, not a tensor")
            elif tuple(value.shape) != tuple(tensor.shape):
                errors.append(f"{name} is {list(value.shape)}, the module's is {list(tensor.shape)}")
            elif value.is_global != tensor.is_global:
                kinds = ["global" if t.is_global else "local" for t in (value, tensor)]
                errors.append(f"local / global mismatch: {name} is {kinds[0]}, the module's is {kinds[1]}; convert it first "
                              f"with {'to_local()' if value.is_global else 'to_global(placement, sbp)'}")
        if errors:
            raise RuntimeError(f"load_state_dict of {type(self).__name__}: " + "; ".join(errors) + ".")
        with no_grad():
            for name, tensor in own.items():
                if name in state_dict:
                    value = state_dict[name]
                    if tensor.is_global:
                        value = value.to_global(tensor.placement, tensor.sbp)
                    tensor.copy_(value)
        return LoadResult((missing, unexpected))

    # Changes of all

    def train(self, mode=True):
        """Sets training mode here and below: dropout is on."""
        for module in self.modules():
            module.training = bool(mode)
        return self

    def eval(self):
        return self.train(False)

    def requires_grad_(self, requires_grad=True):
        for parameter in self.parameters():
            parameter.requires_grad = requires_grad
        return self

    def zero_grad(self, set_to_none=True):
        """Forgets the gradients of all parameters, or sets them to zero."""
        for parameter in self.parameters():
            if parameter.grad is not None:
                if set_to_none:
                    parameter.grad = None
                else:
                    parameter.grad.zero_()

    def apply(self, function):
        """Calls function(module) for every module, the innermost first."""
        for module in self.children():
            module.apply(function)
        function(self)
        return self

    def _convert(self, function):
        """Gives every parameter and buffer the value function(name, tensor), the objects staying the same."""
        with no_grad():
            for name, tensor in (*self.named_parameters(), *self.named_buffers()):
                value = function(name, tensor.detach())
                tensor.data = value
                if tensor.grad is not None:
                    tensor.grad = function(name, tensor.grad)
        return self

    def to(self, *args, **kwargs):
        """Converts all parameters and buffers: to(device), to(dtype), to(device, dtype). A dtype converts floating ones only."""
        dtypes = [a for a in (*args, *kwargs.values()) if isinstance(a, _C.dtype)]

        def convert(name, tensor):
            if dtypes and not tensor.is_floating_point():
                rest = [a for a in args if not isinstance(a, _C.dtype)]
                named = {k: v for k, v in kwargs.items() if not isinstance(v, _C.dtype)}
                return tensor.to(*rest, **named) if rest or named else tensor
            return tensor.to(*args, **kwargs)

        return self._convert(convert)

    def to_global(self, placement=None, sbp=None):
        """Makes all parameters and buffers global, or gives global ones another layout. Collective.

        `sbp` may be a function from a name (as in named_parameters) to the sbp. A local tensor is taken for this rank's
        piece: under broadcast the first rank's value counts, under split the pieces are put together.
        """
        return self._convert(
            lambda name, tensor: tensor.to_global(placement=placement, sbp=sbp(name) if _is_function(sbp) else sbp))

    def to_local(self):
        """Makes all parameters and buffers local: what this rank holds of them."""
        return self._convert(lambda name, tensor: tensor.to_local() if tensor.is_global else tensor)

    def cpu(self):
        return self._convert(lambda name, tensor: tensor.cpu())

    def cuda(self, device=None):
        return self._convert(lambda name, tensor: tensor.cuda() if device is None else tensor.cuda(device))

    def float(self):
        return self.to(_C.float32)

    def double(self):
        return self.to(_C.float64)

    # Hooks

    def register_forward_pre_hook(self, hook):
        """Calls hook(module, args) before forward; what it returns, unless None, replaces the arguments."""
        return RemovableHandle(self._forward_pre_hooks, hook)

    def register_forward_hook(self, hook):
        """Calls hook(module, args, result) after forward; what it returns, unless None, replaces the result."""
        return RemovableHandle(self._forward_hooks, hook)

    # Text

    def extra_repr(self):
        """What repr shows between the brackets of a layer."""
        return ""

    def _get_name(self):
        return type(self).__name__

    def __repr__(self):
        extra = self.extra_repr()
        lines = extra.split("\n") if extra else []
        children = [f"({name}): {_indent(repr(module))}" for name, module in self._modules.items()]
        if not children and len(lines) <= 1:
            return f"{self._get_name()}({extra})"
        return f"{self._get_name()}(\n  " + "\n  ".join(lines + children) + "\n)"


def _is_function(sbp):
    # sbp.broadcast may be callable as well: broadcast() is broadcast.
    return callable(sbp) and not isinstance(sbp, _C.sbp.sbp)
