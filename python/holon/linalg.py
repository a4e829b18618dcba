"""linalg.norm, linalg.cross and so on: the ops whose names begin with linalg_."""

from . import _C

globals().update({name.removeprefix("linalg_"): op for name, op in _C.ops.items() if name.startswith("linalg_")})


def __getattr__(name):
    from ._missing import error

    raise error("linalg", name, [n for n in globals() if n[0] != "_"])
