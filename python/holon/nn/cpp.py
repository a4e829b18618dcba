"""Classes and functions of C++ libraries (HOLON_PYTHON_MODULE, HOLON_PYTHON_FUNCTION) as Python's."""

import inspect
import types
import weakref
from pathlib import Path

from .. import _C
from .module import Module
from .parameter import Parameter

# The classes made so far, by library and name.
_classes: dict[str, dict[str, type]] = {}
# One object for each tensor of C++, by its number: a tied parameter is the same object everywhere.
_objects: weakref.WeakValueDictionary = weakref.WeakValueDictionary()


def _signature(name, arguments):
    """The signature of a callable with these (name, is optional, value) triples, and itself after self."""
    parameters = [
        inspect.Parameter(
            argument or f"arg{i}",
            inspect.Parameter.POSITIONAL_OR_KEYWORD if argument else inspect.Parameter.POSITIONAL_ONLY,
            default=value if optional else inspect.Parameter.empty,
        )
        for i, (argument, optional, value) in enumerate(arguments)
    ]

    def bind(args, kwargs):
        if not kwargs and len(args) == len(parameters):
            return args
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{name}: {error}; its arguments are {signature}.") from None
        bound.apply_defaults()
        return bound.args

    signature = inspect.Signature(parameters)
    return signature, bind


class CppModule(Module):
    """A module that is defined in C++: what C++ has registered is seen here, as the same tensors.

    Its parameters, buffers and submodules may be replaced by others (submodules by modules of C++, of the same class),
    for C++ as well. More can be added, of which C++ does not know.
    """

    def __init__(self, core):
        super().__init__()
        self.__dict__["_owned"] = frozenset()
        self.__dict__["_cpp"] = core
        self._follow()

    # What C++ has

    def _follow(self):
        """Takes over what C++ has registered since."""
        core, owned = self._cpp, []

        def keep(items, name, tensor, kind):
            (identity,) = _C.tensor_ids([tensor])
            known = items.pop(name, None)
            if known is None or _C.tensor_ids([known]) != (identity,):
                known = _objects.get(identity)
            if not isinstance(known, kind):
                known = _C.Tensor.__new__(kind, tensor)  # the same tensor, not a copy
            items[name] = _objects[identity] = known
            owned.append(name)

        for name, tensor in core.parameters():
            keep(self._parameters, name, tensor, Parameter)
        for name, tensor, persistent in core.buffers():
            keep(self._buffers, name, tensor, _C.Tensor)
            (self._non_persistent_buffers.discard if persistent else self._non_persistent_buffers.add)(name)
        for name, child in core.children():
            known = self._modules.pop(name, None)
            if known is not None and known._cpp.identity == child.identity:
                known._follow()
            else:
                known = CppPart(child)
            self._modules[name] = known
            owned.append(name)
        for name in self._owned - set(owned):  # taken out since
            for items in (self._parameters, self._buffers, self._modules):
                items.pop(name, None)
        self.__dict__["_owned"] = frozenset(owned)
        self.__dict__["_changes"] = core.changes
        _C.note_module_change()

    def _follow_if_changed(self):
        if self._cpp.changes != self._changes:
            self._follow()
        _C.note_module_change()

    @property
    def training(self):
        return self._cpp.training

    @training.setter
    def training(self, mode):
        self._cpp.training = bool(mode)

    # Changes

    def _replace(self, name, value):
        """Registers something else in C++ under a name that it has."""
        if name in self._modules:
            if not isinstance(value, CppModule):
                raise TypeError(
                    f"cannot assign {type(value).__name__} as '{name}' of {type(self).__name__}: C++ calls it, so it "
                    "must be a module that is defined in C++."
                )
            self._cpp.replace_module(name, value._cpp)
            self._modules[name] = value
        elif name in self._parameters:
            if not isinstance(value, Parameter):
                raise TypeError(
                    f"cannot assign {type(value).__name__} as '{name}' of {type(self).__name__}: C++ reads it, so it "
                    "must be a Parameter."
                )
            learned = value.requires_grad
            self._cpp.replace_parameter(name, value)
            value.requires_grad = learned
            self._parameters[name] = value
        else:
            if not isinstance(value, _C.Tensor):
                raise TypeError(
                    f"cannot assign {type(value).__name__} as '{name}' of {type(self).__name__}: C++ reads it, so it "
                    "must be a tensor."
                )
            self._cpp.replace_buffer(name, value)
            self._buffers[name] = value
        self._follow()

    def __setattr__(self, name, value):
        if name in self.__dict__.get("_owned", ()):
            self._replace(name, value)
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name):
        if name in self._owned:
            raise AttributeError(f"{type(self).__name__}: '{name}' cannot be deleted: C++ has it.")
        super().__delattr__(name)

    def register_parameter(self, name, parameter):
        if name in self._owned:
            self._replace(name, parameter)
        else:
            super().register_parameter(name, parameter)

    def register_buffer(self, name, tensor, persistent=True):
        if name in self._owned:
            raise KeyError(f"{type(self).__name__} has '{name}' from C++: assign to it, or choose another name.")
        super().register_buffer(name, tensor, persistent)

    def add_module(self, name, module):
        if name in self._owned:
            self._replace(name, module)
        else:
            super().add_module(name, module)

    register_module = add_module

    def __reduce_ex__(self, protocol):
        raise TypeError(
            f"{type(self).__name__} is defined in C++ and can be neither pickled nor copied: make another one, and "
            "give it this one's state by load_state_dict(); holon.save() saves state_dict()."
        )


class CppPart(CppModule):
    """A part of a module that is defined in C++, which alone calls it."""

    def forward(self, *args, **kwargs):
        raise NotImplementedError(
            "this module is a part of one that is defined in C++, and only C++ knows how to call it. Export its class "
            "by HOLON_PYTHON_MODULE, and a function that returns it."
        )

    def _refuse_hook(self, *args, **kwargs):
        raise NotImplementedError(
            "this module is a part of one that is defined in C++, which does not run hooks of Python. Register the "
            "hook with the whole module, or in C++."
        )

    register_forward_hook = register_forward_pre_hook = _refuse_hook
    register_full_backward_hook = register_full_backward_pre_hook = _refuse_hook

    def _get_name(self):
        return "CppModule"


def _module_class(export, module):
    signature, bind = _signature(export.name, export.arguments())
    forward_signature, bind_forward = _signature(f"{export.name}.forward", export.forward_arguments())

    def __init__(self, *args, **kwargs):
        core = args[0] if len(args) == 1 and isinstance(args[0], _C.CppModule) else export.make(bind(args, kwargs))
        CppModule.__init__(self, core)

    def forward(self, *args, **kwargs):
        return self._cpp.call(bind_forward(args, kwargs))

    __init__.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY), *_after_self(signature)]
    )
    forward.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY), *_after_self(forward_signature)]
    )
    body = {"__init__": __init__, "forward": forward, "__module__": module, "__doc__": export.doc or None}
    return type(export.name, (CppModule,), body)


def _after_self(signature):
    return signature.parameters.values()


def _function(export, module, classes):
    signature, bind = _signature(export.name, export.arguments())

    def function(*args, **kwargs):
        values = bind(args, kwargs)
        try:
            return _with_classes(export.call(values), classes)
        finally:
            for value in values:
                if isinstance(value, CppModule):
                    value._follow_if_changed()

    function.__name__ = function.__qualname__ = export.name
    function.__module__, function.__doc__ = module, export.doc or None
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


def _with_classes(value, classes):
    """A result with modules as objects of their classes."""
    if isinstance(value, _C.CppModule):
        made = classes.get(value.class_name)
        return made(value) if made else CppPart(value)
    if type(value) in (list, tuple):
        return type(value)(_with_classes(item, classes) for item in value)
    return value


def import_library(path, name=None):
    """holon.import_library."""
    from .. import load_library  # which imports this package

    path = Path(path)
    name = name or path.name.removeprefix("lib").split(".")[0]
    load_library(path)
    modules, functions = _C.load_exports(str(path))
    classes = _classes.setdefault(str(path.resolve()), {})
    for export in modules:
        if export.name not in classes:
            classes[export.name] = _module_class(export, name)
    made = types.ModuleType(name, f"What {path.name} exports.")
    made.__file__ = str(path)
    made.__dict__.update(classes)
    made.__dict__.update({export.name: _function(export, name, classes) for export in functions})
    return made
