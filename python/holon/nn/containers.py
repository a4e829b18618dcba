"""Modules that hold modules: in order (Sequential, ModuleList) or by name (ModuleDict); and parameters likewise."""

from .. import _C
from .module import Module
from .parameter import Parameter


class _List(Module):
    """What the ordered containers share with a list; names are "0", "1", ..."""

    _registered = "_modules"

    def _items(self):
        return self.__dict__[self._registered]

    def _register(self, name, value):
        self.add_module(name, value)

    def _name_at(self, index):
        n = len(self)
        if not -n <= index < n:
            raise IndexError(f"{type(self).__name__}: index {index} is out of range, it holds {n}.")
        return list(self._items())[index]

    def _set_all(self, values):
        self._items().clear()
        for i, value in enumerate(values):
            self._register(str(i), value)

    def __len__(self):
        return len(self._items())

    def __iter__(self):
        return iter(self._items().values())

    def __contains__(self, value):
        return any(value is held for held in self)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return self._of(list(self)[index])
        return self._items()[self._name_at(index)]

    def __setitem__(self, index, value):
        self._register(self._name_at(index), value)

    def __delitem__(self, index):
        if not isinstance(index, slice):
            self._name_at(index)
        kept = list(self)
        del kept[index]
        self._set_all(kept)

    def __add__(self, other):
        return self._of([*self, *other])

    def __iadd__(self, other):
        return self.extend(other)

    def append(self, value):
        """Adds one at the end; returns self."""
        self._register(str(len(self)), value)
        return self

    def extend(self, values):
        """Adds all at the end; returns self."""
        for value in list(values):
            self.append(value)
        return self

    def insert(self, index, value):
        """Puts one before those from index on; returns self."""
        held = list(self)
        held.insert(index, value)
        self._set_all(held)
        return self

    def pop(self, index=-1):
        """Takes one out and returns it."""
        value = self[index]
        del self[index]
        return value

    def _of(self, values):
        return type(self)(values)


class Sequential(_List):
    """Calls its modules one after the other: Sequential(a, b)(x) is b(a(x)).
    Also takes one dict from names to modules."""

    def __init__(self, *modules):
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], dict):
            for name, module in modules[0].items():
                self.add_module(name, module)
        else:
            self.extend(modules)

    def _of(self, values):
        return Sequential(*values)

    def forward(self, x):
        for module in self._modules.values():
            x = module(x)
        return x


class ModuleList(_List):
    """A list of modules, without a forward."""

    def __init__(self, modules=()):
        super().__init__()
        self.extend(modules)

    def __repr__(self):
        # Equal neighbours are one line: (0-3): 4 x Linear(...).
        blocks = []
        for i, text in enumerate(map(repr, self)):
            if blocks and blocks[-1][2] == text:
                blocks[-1][1] = i
            else:
                blocks.append([i, i, text])
        lines = [f"({a}): {text}" if a == b else f"({a}-{b}): {b - a + 1} x {text}" for a, b, text in blocks]
        name = self._get_name()
        return f"{name}(\n  " + "\n".join(lines).replace("\n", "\n  ") + "\n)" if lines else f"{name}()"


def _as_parameter(value):
    return value if isinstance(value, Parameter) or value is None else Parameter(value)


def _describe(parameter):
    if parameter is None:
        return "None"
    where = (
        f"placement={parameter.placement}, sbp={parameter.sbp}" if parameter.is_global else f"device={parameter.device}"
    )
    return f"Parameter containing: [{parameter.dtype} of size {'x'.join(map(str, parameter.shape))} ({where})]"


class ParameterList(_List):
    """A list of parameters; tensors become parameters. It has no forward."""

    _registered = "_parameters"

    def __init__(self, parameters=()):
        super().__init__()
        self.extend(parameters)

    def _register(self, name, value):
        self.register_parameter(name, _as_parameter(value))

    def extra_repr(self):
        return "\n".join(f"({name}): {_describe(p)}" for name, p in self._parameters.items())


class _Dict(Module):
    """What the containers by name share with a dict."""

    _registered = "_modules"

    def __init__(self, items=None):
        super().__init__()
        if items is not None:
            self.update(items)

    def _items(self):
        return self.__dict__[self._registered]

    def _register(self, name, value):
        self.add_module(name, value)

    def _check(self, name):
        if name not in self._items():
            raise KeyError(f"{type(self).__name__} has no '{name}'; it holds: {', '.join(self._items()) or 'nothing'}.")

    def __getitem__(self, name):
        self._check(name)
        return self._items()[name]

    def __setitem__(self, name, value):
        self._register(name, value)

    def __delitem__(self, name):
        self._check(name)
        del self._items()[name]

    def __contains__(self, name):
        return name in self._items()

    def __len__(self):
        return len(self._items())

    def __iter__(self):
        return iter(self._items())

    def __reversed__(self):
        return reversed(list(self._items()))

    def update(self, items):
        """Adds all of a dict, or of pairs (name, value)."""
        for name, value in dict(items.items() if hasattr(items, "items") else items).items():
            self[name] = value

    def clear(self):
        """Takes all out."""
        self._items().clear()

    def pop(self, name, *default):
        """Takes one out and returns it, or default where there is none of that name."""
        if not default:
            self._check(name)
        return self._items().pop(name, *default)

    def popitem(self):
        """Takes the last out and returns (name, value)."""
        if not len(self):
            raise KeyError(f"popitem: {type(self).__name__} is empty.")
        return self._items().popitem()

    def get(self, name, default=None):
        """Returns the value of that name, or default."""
        return self._items().get(name, default)

    def setdefault(self, name, default=None):
        """Returns the value of that name, which becomes default if there is none."""
        if name not in self:
            self[name] = default
        return self[name]

    def keys(self):
        return self._items().keys()

    def values(self):
        return self._items().values()

    def items(self):
        return self._items().items()


class ModuleDict(_Dict):
    """Modules by name, without a forward."""


class ParameterDict(_Dict):
    """Parameters by name; tensors become parameters. It has no forward."""

    _registered = "_parameters"

    def _register(self, name, value):
        if value is not None and not isinstance(value, _C.Tensor):
            raise TypeError(f"ParameterDict: '{name}' must be a tensor or None, not {type(value).__name__}.")
        self.register_parameter(name, _as_parameter(value))

    def copy(self):
        """Returns another dict of the same parameters."""
        return ParameterDict(self)

    def fromkeys(self, names, default=None):
        """Returns a new dict from each name to default."""
        return ParameterDict(dict.fromkeys(names, default))

    def __or__(self, other):
        return ParameterDict({**dict(self.items()), **dict(other.items())})

    def __ior__(self, other):
        self.update(other)
        return self

    def extra_repr(self):
        return "\n".join(f"({name}): {_describe(p)}" for name, p in self._parameters.items())
