"""Modules that hold modules: in order (Sequential, ModuleList) or by name (ModuleDict); ParameterList for parameters."""
from .module import Module, Parameter


class _List(Module):
    """What the ordered containers share: index, slice, append, len, iteration; names are "0", "1", ..."""

    _registered = "_modules"

    def _items(self):
        return self.__dict__[self._registered]

    def _name_at(self, index):
        n = len(self)
        if not -n <= index < n:
            raise IndexError(f"{type(self).__name__}: index {index} is out of range, it holds {n}.")
        return list(self._items())[index]

    def __len__(self):
        return len(self._items())

    def __iter__(self):
        return iter(self._items().values())

    def __getitem__(self, index):
        if isinstance(index, slice):
            return self._of(list(self._items().values())[index])
        return self._items()[self._name_at(index)]

    def __setitem__(self, index, value):
        setattr(self, self._name_at(index), value)

    def __delitem__(self, index):
        kept = list(self._items().values())
        del kept[index]
        self._items().clear()
        self.extend(kept)

    def append(self, value):
        setattr(self, str(len(self)), value)
        return self

    def extend(self, values):
        for value in values:
            self.append(value)
        return self

    def insert(self, index, value):
        held = list(self._items().values())
        held.insert(index, value)
        self._items().clear()
        self.extend(held)

    def _of(self, values):
        return type(self)(values)


class Sequential(_List):
    """Calls its modules one after the other: Sequential(a, b)(x) is b(a(x)). Also takes one dict from names to modules."""

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
    """A list of modules; has no forward of its own."""

    def __init__(self, modules=()):
        super().__init__()
        self.extend(modules)


class ParameterList(_List):
    """A list of parameters; has no forward of its own."""

    _registered = "_parameters"

    def __init__(self, parameters=()):
        super().__init__()
        self.extend(parameters)

    def append(self, value):
        return super().append(value if isinstance(value, Parameter) else Parameter(value))


class ModuleDict(Module):
    """Modules by name; has no forward of its own."""

    def __init__(self, modules=None):
        super().__init__()
        self.update(modules or {})

    def update(self, modules):
        for name, module in dict(modules).items():
            self[name] = module

    def __getitem__(self, name):
        if name not in self._modules:
            raise KeyError(f"ModuleDict has no '{name}'; it holds: {', '.join(self._modules) or 'nothing'}.")
        return self._modules[name]

    def __setitem__(self, name, module):
        self.add_module(name, module)

    def __delitem__(self, name):
        del self._modules[name]

    def __contains__(self, name):
        return name in self._modules

    def __len__(self):
        return len(self._modules)

    def __iter__(self):
        return iter(self._modules)

    def keys(self):
        return self._modules.keys()

    def values(self):
        return self._modules.values()

    def items(self):
        return self._modules.items()
