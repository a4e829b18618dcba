"""Helpers around training: data."""


def __getattr__(name):
    if name in ("data",):
        from importlib import import_module

        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"utils has no '{name}'. It has data.")
