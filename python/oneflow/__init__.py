"""OneFlow's names on Holon: `import oneflow as flow` gives what `import holon` gives; only the texts say "oneflow"."""
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec

# Modules that are files here are what `python -m` starts; all others are holon's own.
_PREFIX = __name__ + "."


class _HolonsModules:
    """Finds oneflow.x as holon.x, the same module object."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        return ModuleSpec(name, _HolonsModules) if name.startswith(_PREFIX) else None

    @staticmethod
    def create_module(spec):
        return None

    @staticmethod
    def exec_module(module):
        _holon()
        sys.modules[module.__name__] = import_module("holon." + module.__name__[len(_PREFIX):])


sys.meta_path.append(_HolonsModules)


def _holon():
    # Loaded on first use, so that the launcher starts without it.
    holon = sys.modules.get("holon")
    if holon is None or not _loaded:
        holon = import_module("holon")
        holon.set_printoptions(prefix=__name__, gather=True)
        _loaded.append(True)
    return holon


_loaded = []


def __getattr__(name):
    return getattr(_holon(), name)


def __dir__():
    return dir(_holon())
