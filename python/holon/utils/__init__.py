"""Tools around training: data, your own op libraries (cpp_extension), recomputation (checkpoint), values
between the local and the global view (global_view)."""

from .. import load_library

_SUBMODULES = ("checkpoint", "cpp_extension", "data", "global_view")

__all__ = ["load_library", *_SUBMODULES]


def __getattr__(name):
    if name in _SUBMODULES:
        from importlib import import_module

        return import_module(f"{__name__}.{name}")
    from .._missing import error

    raise error("utils", name, __all__)
