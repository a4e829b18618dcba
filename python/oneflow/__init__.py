"""OneFlow's names on Holon: `import oneflow as flow` gives what `import holon` gives, in texts that say "oneflow", and
OneFlow's older interface (single_client).

This is only a table: modules that are files here (and what `python -m` starts), names that are elsewhere in
Holon or here (elsewhere.py), functions whose parameters are others (_C.py), and names that are not there, with what
to use instead (missing.py).
"""

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from operator import attrgetter
from os import environ, sep
from os.path import abspath, dirname
from types import ModuleType

_PREFIX = __name__ + "."
# The modules that are files here.
_OWN = {"_C", "distributed", "framework", "sysconfig"}
_FILES = {*_OWN, "elsewhere", "missing", "more", "single_client"}


class _Extended(ModuleType):
    """A module of Holon's in which some modules and classes are those here, and which also has the names of another
    module."""

    def __init__(self, spec, holons, older):
        from .elsewhere import CLASSES, EXTENDED, FILES

        super().__init__(spec.name, holons.__doc__)
        self.__dict__.update(__spec__=spec, __package__=spec.name, __loader__=spec.loader)
        self.__dict__.update(_holons=holons, _older=older)
        start = spec.name[len(_PREFIX) :] + "."
        self.__dict__["_modules"] = {p[len(start) :] for p in (*FILES, *EXTENDED) if p.startswith(start)}
        self.__dict__["_classes"] = {p[len(start) :]: m for p, m in CLASSES.items() if p.startswith(start)}

    def __getattr__(self, name):
        if name in self._modules:
            return import_module(f"{self.__name__}.{name}")
        if name in self._classes:
            return getattr(import_module(self._classes[name]), name)
        try:
            return getattr(self._holons, name)
        except AttributeError:
            if self._older is not None and name[:2] != "__":
                older = import_module(self._older)
                if name in older.__all__:
                    return getattr(older, name)
            raise

    def __setattr__(self, name, value):
        # The import of a module that is here binds its name, too.
        (super() if name in self._modules else self._holons).__setattr__(name, value)

    def __dir__(self):
        return dir(self._holons)


class _HolonsModules:
    """Finds oneflow.x as holon.x, the same module object."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if not name.startswith(_PREFIX) or name[len(_PREFIX) :].partition(".")[0] in _FILES:
            return None
        return ModuleSpec(name, _HolonsModules)

    @staticmethod
    def create_module(spec):
        return None

    @staticmethod
    def exec_module(module):
        name = module.__name__
        path = name[len(_PREFIX) :]
        _holon()
        from .elsewhere import EXTENDED, FILES, MODULES

        target = FILES[path] if path in FILES else "holon." + MODULES.get(path, path)
        try:
            found = import_module(target)
            sys.modules[name] = _Extended(module.__spec__, found, EXTENDED[path]) if path in EXTENDED else found
        except ModuleNotFoundError as error:
            # What the module itself imports may be missing, too: that is told as it is.
            if error.name is None or not (target + ".").startswith(error.name + "."):
                raise
            found = getattr(sys.modules["holon"], path, None) if "." not in path else None
            if not isinstance(found, type(sys)):
                from .missing import module_text

                raise ModuleNotFoundError(module_text(path), name=name) from None
            sys.modules[name] = found  # sbp is a part of the extension, not a module to import


# First of all: below a package of Holon the files would be found, and become modules twice.
sys.meta_path.insert(0, _HolonsModules)


def _holon():
    # Loaded on first use, so that the launcher starts without it.
    holon = sys.modules.get("holon")
    if holon is None or not _loaded:
        if environ.get("ONEFLOW_ENABLE_NHWC") == "1":
            raise RuntimeError(
                "ONEFLOW_ENABLE_NHWC=1: layers that take images with the channels last are not there. Unset it, and "
                "give images as [n, c, h, w]: convolutions keep the channels last in memory automatically."
            )
        holon = import_module("holon")
        holon.set_printoptions(prefix=__name__, gather=True)
        holon._C.set_numpy_copies(True)
        holon._C.add_package_folder(dirname(abspath(__file__)) + sep)
        from .elsewhere import DEFAULTS, METHODS
        from .missing import tell

        tell(holon)
        for path, name, value in DEFAULTS:
            setattr(attrgetter(path)(holon), name, value)
        functions = import_module(_PREFIX + "_C")
        for name in METHODS:
            setattr(holon.Tensor, name, getattr(functions, name))
        _loaded.append(True)
    return holon


_loaded: list[bool] = []


def __getattr__(name):
    holon = _holon()
    if name in _OWN:
        return import_module(_PREFIX + name)
    from .elsewhere import EXTENDED, FILES, FUNCTIONS, MODULES

    if name in FUNCTIONS:
        return getattr(import_module(_PREFIX + "_C"), FUNCTIONS[name])
    if name in MODULES or name in EXTENDED or name in FILES:
        return import_module(_PREFIX + name)
    try:
        return getattr(holon, name)
    except AttributeError:
        if name[:2] != "__":
            found = import_module(_PREFIX + "single_client").lookup(name)
            if found is not None:
                return found
        raise


def __dir__():
    from .elsewhere import FILES, FUNCTIONS, MODULES

    return sorted({*dir(_holon()), *_OWN, *FUNCTIONS, *(m for m in (*MODULES, *FILES) if "." not in m)})
