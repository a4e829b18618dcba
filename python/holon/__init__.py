"""Holon: deep learning with tensors that the program sees whole and each rank holds a part of.

Ops are functions here and methods of Tensor; `holon.ops()` lists them. nn, optim and autograd are as in PyTorch;
placement, sbp, to_global and to_local are what makes tensors global.
"""

import os as _os
import sys as _sys

# Threads of a parallel loop wait for each other by spinning, which on a busy machine takes time from those that work:
# after about 0.2 ms they sleep. OpenMP reads this when the extension is loaded.
_os.environ.setdefault("GOMP_SPINCOUNT", "20000")

from . import _C  # noqa: E402
from ._C import (  # noqa: E402
    ContextHandoff,
    Generator,
    LayoutError,
    Size,
    Tensor,
    as_tensor,
    device,
    dtype,
    from_dlpack,
    from_numpy,
    manual_seed,
    placement,
    promote_types,
    run_ranks,
    sbp,
    tensor,
)
from . import _faults as _faults  # noqa: E402

_C.set_package_folders([folder for folder in _sys.path if folder])
from .amp import autocast, get_autocast_dtype, is_autocast_enabled
from .autograd import enable_grad, inference_mode, no_grad, set_grad_enabled
from .boxing import boxing_policy, contract, explain
from ._deterministic import deterministic
from ._visualize import visualize
from .limits import finfo, iinfo

# Below this line some of Python's own names (float, sum, ...) are dtypes and ops.
globals().update({name: value for name, value in vars(_C).items() if isinstance(value, dtype)})
globals().update(_C.ops)
to_dlpack = Tensor.__dlpack__

from .random import get_rng_state, initial_seed, seed, set_rng_state  # noqa: E402

__version__ = _C.__version__
is_grad_enabled = _C.is_grad_enabled
# Loaded on first use.
_LAZY = {
    "jit": "_jit",
    **dict.fromkeys(("RanksError", "World", "world"), "_world"),
    **dict.fromkeys(("load_ipython_extension", "unload_ipython_extension"), "_notebook"),
    **dict.fromkeys(("load", "save"), "_checkpoint"),
    **dict.fromkeys(("export", "receive"), "_transfer"),
    "KeyMap": "_key_map",
    "relayout": "_relayout",
    **dict.fromkeys(
        (
            "BFloat16Tensor",
            "BoolTensor",
            "ByteTensor",
            "CharTensor",
            "DoubleTensor",
            "FloatTensor",
            "HalfTensor",
            "IntTensor",
            "LongTensor",
        ),
        "_typed",
    ),
    **dict.fromkeys(
        (
            "broadcast_shapes",
            "get_default_dtype",
            "is_nonzero",
            "new_empty",
            "new_full",
            "new_ones",
            "new_zeros",
            "set_default_dtype",
        ),
        "_more",
    ),
}
_SUBMODULES = {
    "amp",
    "autograd",
    "backends",
    "boxing",
    "checkpoint",
    "comm",
    "cpu",
    "cuda",
    "data",
    "distributed",
    "env",
    "linalg",
    "models",
    "nn",
    "optim",
    "pipeline",
    "random",
    "utils",
}

# Names for the two halves of to_global.
local_to_global = global_to_global = to_global  # type: ignore[name-defined]  # noqa: F821
Tensor.local_to_global = Tensor.global_to_global = Tensor.to_global  # type: ignore[attr-defined]


def _drawn_by(name):
    """A method that a notebook calls; what it needs is loaded then."""

    def _repr_html_(self):
        from . import _notebook

        return getattr(_notebook, name)(self)

    return _repr_html_


Tensor._repr_html_ = _drawn_by("tensor_html")  # type: ignore[attr-defined]
placement._repr_html_ = _drawn_by("placement_html")  # type: ignore[attr-defined]


def is_tensor(obj):
    """Returns whether obj is a tensor."""
    return isinstance(obj, Tensor)


def is_floating_point(x):
    """Returns whether the elements of x are floating point numbers."""
    return x.dtype.is_floating_point


def numel(x):
    """Returns the number of elements of x."""
    return x.numel()


def tensordot(x, other, dims=2, dims_other=None):
    """The sum of products over the last dims axes of x and the first of other, or over the axes that dims names:
    a list for each."""
    if dims_other is None and hasattr(dims, "__iter__"):
        dims, dims_other = (d if hasattr(d, "__iter__") else [d] for d in dims)
    return (
        _C.ops["tensordot"](x, other, dims) if dims_other is None else _C.ops["tensordot"](x, other, dims, dims_other)
    )


def ops():
    """Returns the names of all ops."""
    return sorted(_C.ops)


def load_library(path):
    """Loads a shared library of ops (declared by HOLON_OP in C++) and returns their names:
    functions here, methods of Tensor.

    Errors (RuntimeError): no such file; built against another version of Holon; a name that is taken.
    """
    names = _C.load_library(str(path))
    globals().update({form: _C.ops[form] for name in names for form in (name, name + "_") if form in _C.ops})
    return names


def import_library(path, name=None):
    """Loads a shared library of C++, and returns a Python module with the classes and functions that it exports by
    HOLON_PYTHON_MODULE and HOLON_PYTHON_FUNCTION; its ops become functions of holon, as by load_library().

    The classes derive from holon.nn.Module. name: of the Python module, by default the file's ("my_models" for
    "libmy_models.so"). Errors (RuntimeError): those of load_library(); a declaration that is wrong.
    """
    from .nn.cpp import import_library

    return import_library(path, name)


def load_device_library(path):
    """Loads the shared library of a backend (HOLON_DEVICE_BACKEND in C++) and returns the name of its type of devices,
    which tensors and placements may be on from then on. On every rank alike; HOLON_DEVICE_LIBRARIES does the same.

    Errors (RuntimeError): no such file; no backend; built for another version of Holon; a name that is taken.
    """
    return _C.load_device_library(str(path))


def set_printoptions(*, precision=None, threshold=None, edgeitems=None, linewidth=None, gather=None, prefix=None):
    """Changes how tensors are shown as text, for the whole process; what is left out stays.

    gather: whether the text of a global tensor shows its whole value; printing is then collective.
    prefix: the word before names such as holon.float32.
    """
    _C.set_printoptions(
        precision=precision, threshold=threshold, edgeitems=edgeitems, linewidth=linewidth, gather=gather, prefix=prefix
    )


def __getattr__(name):
    if name in _SUBMODULES:
        from importlib import import_module

        return import_module(f"{__name__}.{name}")
    if name in _LAZY:
        from importlib import import_module

        return globals().setdefault(name, getattr(import_module(f"{__name__}.{_LAZY[name]}"), name))
    from ._missing import error

    prefix = _C.get_printoptions()["prefix"]
    raise error(
        "",
        name,
        {*(n for n in globals() if n[0] != "_"), *_SUBMODULES, *_LAZY},
        f"{prefix}.ops() lists the ops that there are.",
    )


def __dir__():
    return sorted({*globals(), *_SUBMODULES, *_LAZY})
