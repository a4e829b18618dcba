"""Module: the base class of layers and models."""

from itertools import chain

from .. import _C
from ..autograd import no_grad
from . import hooks
from .hooks import RemovableHandle
from .parameter import Parameter, layout

Tensor = _C.Tensor


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


# While a graph is captured: what calls modules instead (nn/graph/scopes.py).
_captured_call = None

_REGISTERED = ("_parameters", "_buffers", "_modules")
_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


def _misfits(name, tensor, value, assign):
    """Yields why a value cannot be loaded as the module's tensor."""
    if not isinstance(value, Tensor):
        yield f"{name} is a {type(value).__name__}, not a tensor"
    elif tuple(value.shape) != tuple(tensor.shape):
        yield f"{name} is {list(value.shape)}, the module's is {list(tensor.shape)}"
    elif value.is_global != tensor.is_global and not assign:
        kinds = ["global" if t.is_global else "local" for t in (value, tensor)]
        yield (
            f"local / global mismatch: {name} is {kinds[0]}, the module's is {kinds[1]}; convert it first with "
            f"{'to_local()' if value.is_global else 'to_global(placement, sbp)'}"
        )


def _few(texts, between=", "):
    """The first few of them, as a model may have thousands."""
    more = f" and {len(texts) - 5} more" if len(texts) > 5 else ""
    return between.join(texts[:5]) + more


def _prefix(missing, unexpected):
    """The prefix that all unexpected names add to the missing ones, such as a wrapper's "module."."""
    there = set(unexpected)
    for name in unexpected if missing else ():
        prefix = name.removesuffix(missing[0])
        if name != prefix and prefix.endswith(".") and all(prefix + m in there for m in missing):
            return prefix
    return ""


class Module:
    """Base class of layers and models: define `forward`, assign parameters and submodules as attributes."""

    _detaches_state = True

    def __init__(self):
        state = self.__dict__
        state["training"] = True
        state["_non_persistent_buffers"] = set()
        for registered in _REGISTERED + _HOOKS:
            state[registered] = {}

    def forward(self, *args, **kwargs):
        raise NotImplementedError(
            f"{type(self).__name__} has no forward: define it, as in `def forward(self, x): ...`."
        )

    def __call__(self, *args, **kwargs):
        if _captured_call is not None:
            return _captured_call(self, args, kwargs)
        if not (self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks):
            return self.forward(*args, **kwargs)
        return hooks.call(self, args, kwargs)

    # Attributes

    def __setattr__(self, name, value):
        if isinstance(value, Parameter):
            self._forget(name)
            self.register_parameter(name, value)
        elif isinstance(value, Module):
            self._forget(name)
            if hasattr(type(self), name):
                # A method's name, as `modules`: the attribute stays the method, as in PyTorch.
                self._modules[name] = value
                _C.note_module_change()
            else:
                self.add_module(name, value)
        else:
            for registered, kind in (("_parameters", (Parameter,)), ("_modules", (Module,)), ("_buffers", (Tensor,))):
                items = self.__dict__.get(registered)
                if items is not None and name in items:
                    if value is not None and not isinstance(value, kind):
                        raise TypeError(
                            f"cannot assign {type(value).__name__} as '{name}' of {type(self).__name__}: it is "
                            f"registered as {kind[0].__name__}. Assign one, or None, or `del` the attribute first."
                        )
                    items[name] = value
                    _C.note_module_change()
                    return
            object.__setattr__(self, name, value)
            if name == "training":
                _C.note_module_change()

    def __getattr__(self, name):
        state = self.__dict__
        for registered in _REGISTERED:
            items = state.get(registered)
            if items is not None and name in items:
                return items[name]
        if "_parameters" not in state:
            raise AttributeError(
                f"{type(self).__name__} has no attribute '{name}'. Call super().__init__() first in its __init__."
            )
        raise AttributeError(f"{type(self).__name__} has no attribute '{name}'.")

    def __delattr__(self, name):
        for registered in _REGISTERED:
            if name in self.__dict__[registered]:
                del self.__dict__[registered][name]
                _C.note_module_change()
                self._non_persistent_buffers.discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self):
        return sorted({*super().__dir__(), *self._parameters, *self._buffers, *self._modules})

    def _forget(self, name):
        """Makes the name free for a parameter or module."""
        if "_parameters" not in self.__dict__:
            raise AttributeError(
                f"cannot assign '{name}' to {type(self).__name__}: call super().__init__() first in its __init__."
            )
        self.__dict__.pop(name, None)
        for registered in _REGISTERED:
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
            raise TypeError(
                f"'{name}' must be a Parameter or None, not {type(parameter).__name__}: wrap it as nn.Parameter(x)."
            )
        self._parameters[name] = parameter
        _C.note_module_change()

    def register_buffer(self, name, tensor, persistent=True):
        """Adds a tensor that belongs to the state but is not learned."""
        self._check_name(name, self._buffers)
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(f"'{name}' must be a tensor or None, not {type(tensor).__name__}.")
        self._buffers[name] = tensor
        _C.note_module_change()
        (self._non_persistent_buffers.discard if persistent else self._non_persistent_buffers.add)(name)

    def add_module(self, name, module):
        """Adds a submodule, or None."""
        self._check_name(name, self._modules)
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"'{name}' must be a Module or None, not {type(module).__name__}.")
        self._modules[name] = module
        _C.note_module_change()

    register_module = add_module

    # Walks

    def named_modules(self, memo=None, prefix="", remove_duplicate=True):
        """Yields (name, module) for this module and all below it."""
        memo = set() if memo is None else memo
        if remove_duplicate:
            if self in memo:
                return
            memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                yield from module.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self):
        """Yields this module and all below it, each once."""
        for _, module in self.named_modules():
            yield module

    def named_children(self):
        """Yields (name, module) for the modules directly in this one, each once."""
        seen = set()
        for name, module in self._modules.items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def children(self):
        """Yields the modules directly in this one, each once."""
        for _, module in self.named_children():
            yield module

    def _named_members(self, registered, prefix, recurse, remove_duplicate):
        seen = set()
        walk = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else [(prefix, self)]
        for path, module in walk:
            for name, tensor in module.__dict__[registered].items():
                if tensor is None or id(tensor) in seen:
                    continue
                if remove_duplicate:
                    seen.add(id(tensor))
                yield f"{path}.{name}" if path else name, tensor

    def named_parameters(self, prefix="", recurse=True, remove_duplicate=True):
        """Yields (name, parameter); a parameter that has several names under the first,
        unless remove_duplicate is False."""
        return self._named_members("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse=True):
        """Yields the parameters, each once."""
        for _, parameter in self.named_parameters(recurse=recurse):
            yield parameter

    def named_buffers(self, prefix="", recurse=True, remove_duplicate=True):
        """Yields (name, buffer), as named_parameters."""
        return self._named_members("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse=True):
        """Yields the buffers, each once."""
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

    def _get_member(self, registered, kind, target):
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        if module.__dict__[registered].get(name) is None:
            raise AttributeError(f"{type(module).__name__} has no {kind} '{name}' (of '{target}').")
        return module.__dict__[registered][name]

    def get_parameter(self, target):
        """Returns the parameter at a path such as "blocks.0.weight"."""
        return self._get_member("_parameters", "parameter", target)

    def get_buffer(self, target):
        """Returns the buffer at a path such as "blocks.0.running_mean"."""
        return self._get_member("_buffers", "buffer", target)

    # State

    def state_dict(self, destination=None, prefix="", keep_vars=False):
        """Returns a dict from the names of parameters and persistent buffers to their tensors,
        detached unless keep_vars."""
        destination = {} if destination is None else destination
        for hook in list(self._state_dict_pre_hooks.values()):
            hook(self, prefix, keep_vars)
        for name, tensor in (*self._parameters.items(), *self._buffers.items()):
            if tensor is not None and name not in self._non_persistent_buffers:
                destination[prefix + name] = tensor.detach() if self._detaches_state and not keep_vars else tensor
        for name, module in self._modules.items():
            if module is not None:
                module.state_dict(destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        for hook in list(self._state_dict_hooks.values()):
            hook(self, destination, prefix, {})
        return destination

    def load_state_dict(self, state_dict, strict=True, assign=False):
        """Copies tensors into the parameters and buffers of the same names; global ones are converted to their layout.

        assign: the parameters and buffers take the tensors themselves, with their dtype and layout; the Parameter
        objects stay. Collective where parameters are global. Nothing is changed if a name or shape does not fit
        (names: if strict).
        """
        if not hasattr(state_dict, "items"):
            raise TypeError(f"load_state_dict: takes a dict from names to tensors, got {type(state_dict).__name__}.")
        state_dict, missing, unexpected, errors = dict(state_dict), [], [], []
        for path, module in self.named_modules(remove_duplicate=False):
            for hook in list(module._load_state_dict_pre_hooks.values()):
                hook(module, state_dict, f"{path}." if path else "", {}, strict, missing, unexpected, errors)
        own = self.state_dict(keep_vars=True)
        missing += [name for name in own if name not in state_dict]
        unexpected += [name for name in state_dict if name not in own]
        if strict and missing:
            errors.append("missing: " + _few(missing))
        if strict and unexpected:
            errors.append("unexpected: " + _few(unexpected))
        if strict and (prefix := _prefix(missing, unexpected)):
            errors.append(f"the names there begin with {prefix!r}: take that off first")
        misfits = [
            e
            for name, tensor in own.items()
            if name in state_dict
            for e in _misfits(name, tensor, state_dict[name], assign)
        ]
        if misfits:
            errors.append(_few(misfits, "; "))
        if errors:
            raise RuntimeError(f"load_state_dict of {type(self).__name__}: " + "; ".join(errors) + ".")
        with no_grad():
            for name, tensor in own.items():
                if name not in state_dict:
                    continue
                value = state_dict[name]
                if assign:
                    tensor.data, tensor.grad = value.detach(), None
                else:
                    tensor.copy_(value.to_global(tensor.placement, tensor.sbp) if tensor.is_global else value)
        result = LoadResult((missing, unexpected))
        for module in self.modules():
            for hook in list(module._load_state_dict_post_hooks.values()):
                hook(module, result)
        return result

    def register_state_dict_pre_hook(self, hook):
        """Calls hook(module, prefix, keep_vars) before state_dict reads this module."""
        return RemovableHandle(self._state_dict_pre_hooks, hook)

    def register_state_dict_post_hook(self, hook):
        """Calls hook(module, state_dict, prefix, {}) when state_dict has read this module; it may change the dict."""
        return RemovableHandle(self._state_dict_hooks, hook)

    def register_load_state_dict_pre_hook(self, hook):
        """Calls hook(module, state_dict, prefix, {}, strict, missing_keys, unexpected_keys, error_msgs) before
        load_state_dict compares names; it may change a copy of the dict that was given."""
        return RemovableHandle(self._load_state_dict_pre_hooks, hook)

    def register_load_state_dict_post_hook(self, hook):
        """Calls hook(module, result) after load_state_dict; the lists of the result may be changed."""
        return RemovableHandle(self._load_state_dict_post_hooks, hook)

    # Changes of all

    def train(self, mode=True):
        """Sets training mode here and below: dropout is on, batch norm uses the batch's statistics."""
        if not isinstance(mode, bool):
            raise ValueError(f"train: mode must be a bool, got {type(mode).__name__}.")
        for module in self.modules():
            module.training = mode
        return self

    def eval(self):
        """Ends training mode here and below."""
        return self.train(False)

    def requires_grad_(self, requires_grad=True):
        """Sets whether the parameters are learned."""
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
                    parameter.grad = _C.ops["zeros_like"](parameter.grad)

    def apply(self, function):
        """Calls function(module) for every module, the innermost first."""
        for module in self.children():
            module.apply(function)
        function(self)
        return self

    def _convert(self, function):
        """Gives every parameter and buffer the value function(name, tensor), the objects staying the same:
        what is shared, or held by an optimizer, stays so."""
        with no_grad():
            for name, tensor in chain(self.named_parameters(), self.named_buffers()):
                grad = tensor.grad
                value = function(name, tensor.detach())
                if grad is not None:
                    tensor.grad, grad = None, function(name, grad)
                tensor.data = value
                if grad is not None:
                    tensor.grad = grad
        return self

    def to(self, *args, **kwargs):
        """Converts all parameters and buffers: to(device), to(dtype), to(device, dtype), to(tensor). A dtype converts
        floating ones only. to(nn.graph.GraphModule) gives the module as a graph sees it."""
        if len(args) == 1 and isinstance(args[0], type) and not kwargs:
            from .graph.module import block_of, is_graph_module

            if is_graph_module(args[0]):
                return block_of(self, args[0])
            if args[0] is Module:
                return self
        device, dtype, options = kwargs.pop("device", None), kwargs.pop("dtype", None), kwargs
        for i, value in enumerate(args):
            if isinstance(value, _C.dtype):
                dtype = value
            elif isinstance(value, Tensor):
                device, dtype = device if value.is_global else value.device, value.dtype
            elif isinstance(value, bool) and i > 0:
                options.setdefault("non_blocking", value)
            elif value is not None:
                device = value
        if dtype is not None and not dtype.is_floating_point:
            raise TypeError(f"{type(self).__name__}.to: parameters must be floating point numbers, {dtype} are none.")

        def convert(name, tensor):
            if device is not None:
                tensor = tensor.to(device, **options)
            if dtype is not None and tensor.is_floating_point():
                tensor = tensor.to(dtype, **options)
            return tensor

        return self._convert(convert)

    def to_global(self, placement=None, sbp=None):
        """Makes all parameters and buffers global, or gives global ones another layout. Collective.

        `sbp` is one sbp for all, a dict from patterns of names ("*.weight"; the first that fits counts) to sbps, or a
        function from a name (as in named_parameters) to its sbp; what gets None stays as it is. A local tensor is taken
        for this rank's piece: under broadcast the first rank's value counts, under split the pieces are put together.
        Parameters stay the same objects, with their values, gradients and places in optimizers.
        """
        of, asked = layout(sbp), sbp is not None

        def convert(name, tensor):
            new = of(name)
            if asked and new is None:
                return tensor
            try:
                return tensor.to_global(placement=placement, sbp=new)
            except (RuntimeError, TypeError, ValueError) as error:
                raise type(error)(f"{name} of {type(self).__name__}: {error}") from error

        return self._convert(convert)

    def to_local(self):
        """Makes all parameters and buffers local: what this rank holds of them."""
        return self._convert(lambda name, tensor: tensor.to_local() if tensor.is_global else tensor)

    def cpu(self):
        return self._convert(lambda name, tensor: tensor.cpu())

    def cuda(self, device=None):
        return self._convert(lambda name, tensor: tensor.cuda() if device is None else tensor.cuda(device))

    def type(self, dst_type):
        """Converts all parameters and buffers, integers too, to a dtype."""
        return self._convert(lambda name, tensor: tensor.to(dst_type))

    def float(self):
        return self.to(_C.float32)

    def double(self):
        return self.to(_C.float64)

    def half(self):
        return self.to(_C.float16)

    def bfloat16(self):
        return self.to(_C.bfloat16)

    # Hooks

    def register_forward_pre_hook(self, hook, *, prepend=False, with_kwargs=False):
        """Calls hook(module, args) before forward; what it returns, unless None, replaces the arguments. with_kwargs:
        it is hook(module, args, kwargs) and returns None or (args, kwargs)."""
        return RemovableHandle(self._forward_pre_hooks, (hook, with_kwargs), prepend)

    def register_forward_hook(self, hook, *, prepend=False, with_kwargs=False):
        """Calls hook(module, args, result) after forward; what it returns, unless None, replaces the result.
        with_kwargs: it is hook(module, args, kwargs, result)."""
        return RemovableHandle(self._forward_hooks, (hook, with_kwargs), prepend)

    def register_full_backward_hook(self, hook, prepend=False):
        """Calls hook(module, grad_input, grad_output) in backward, when the gradients of the inputs are there; what it
        returns, unless None, replaces them. Both are tuples, with None for what has no gradient."""
        return RemovableHandle(self._backward_hooks, hook, prepend)

    def register_full_backward_pre_hook(self, hook, prepend=False):
        """Calls hook(module, grad_output) in backward, before the gradients of this module;
        what it returns, unless None, replaces grad_output."""
        return RemovableHandle(self._backward_pre_hooks, hook, prepend)

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
