"""Tools around training: data, your own op libraries (cpp_extension), checks of your own
ops and functions (conformance), recomputation (checkpoint), values
between the local and the global view (global_view)."""

from .. import load_library

_SUBMODULES = ("checkpoint", "conformance", "cpp_extension", "data", "global_view")

__all__ = ["load_library", *_SUBMODULES]


def __getattr__(name):
    if name in _SUBMODULES:
        from importlib import import_module

        return import_module(f"{__name__}.{name}")
    from .._missing import error

    raise error("utils", name, __all__)
