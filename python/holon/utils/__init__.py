"""What stands around training: data, and op libraries of one's own (cpp_extension)."""

_SUBMODULES = ("cpp_extension", "data")


def __getattr__(name):
    if name in _SUBMODULES:
        from importlib import import_module

        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"utils has no '{name}'. It has {', '.join(_SUBMODULES)}.")
