"""Your own ops, modules and functions in C++: compiled and loaded at run time."""

import fcntl
import hashlib
import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from .. import _C, import_library, load_library

_PACKAGE = Path(__file__).resolve().parent.parent


def include_paths():
    """Returns the folders of Holon's headers, for a compiler's -I."""
    installed = _PACKAGE / "include"
    return [str(installed)] if installed.is_dir() else [*_C.tree_paths()["include"]]


def library_path():
    """Returns the path of libholon.so, which an op library is linked to."""
    bundled = sorted((_PACKAGE / "lib").glob("libholon.so*"))
    return str(bundled[0]) if bundled else _C.tree_paths()["library"]


def command(sources, output, extra_cflags=(), extra_ldflags=()):
    """Returns the command that compiles sources to the op library output, as a list of words."""
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    return [
        *compiler,
        "-std=c++20",
        "-O3",
        "-march=native",
        "-fPIC",
        "-shared",
        *extra_cflags,
        *(f"-I{p}" for p in include_paths()),
        *map(str, sources),
        library_path(),
        *extra_ldflags,
        "-o",
        str(output),
    ]


def load(
    name,
    sources,
    extra_cflags=(),
    extra_ldflags=(),
    build_directory=None,
    verbose=False,
    is_python_module=False,
):
    """Compiles C++ sources that declare ops by HOLON_OP, loads them, and returns the ops' names; or, with
    is_python_module, a Python module of this name with the classes and functions that they export by
    HOLON_PYTHON_MODULE and HOLON_PYTHON_FUNCTION (holon.import_library).

    Ops are then functions of holon and, if their first argument is a tensor, methods of Tensor. A library is compiled
    once for its sources, flags and version of Holon, in build_directory (~/.cache/holon/extensions); ranks that ask at
    the same time wait for one of them. Errors (RuntimeError): the compiler's; those of load_library.
    """
    sources = [Path(s) for s in ([sources] if isinstance(sources, (str, os.PathLike)) else sources)]
    for s in sources:
        if not s.is_file():
            raise RuntimeError(f"cpp_extension.load: there is no source {s}.")
    folder = Path(build_directory or Path.home() / ".cache/holon/extensions")
    folder.mkdir(parents=True, exist_ok=True)
    words = command(sources, "OUTPUT", extra_cflags, extra_ldflags)
    state = hashlib.sha256(repr(words).encode())
    for s in sources:
        state.update(s.read_bytes())
    built = os.stat(library_path())
    state.update(f"{built.st_mtime_ns} {built.st_size}".encode())
    output = folder / f"{name}-{state.hexdigest()[:16]}.so"
    with open(folder / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not output.exists():
            with tempfile.NamedTemporaryFile(dir=folder, prefix=name, suffix=".tmp", delete=False) as made:
                words[words.index("OUTPUT")] = made.name
            if verbose:
                print(shlex.join(words), flush=True)
            try:
                done = subprocess.run(words, capture_output=True, text=True)
            except FileNotFoundError:
                done = None
            if done is None or done.returncode:
                Path(made.name).unlink(missing_ok=True)  # a compiler that fails may have removed it
                why = done.stderr if done else "there is no such compiler; CXX selects another."
                raise RuntimeError(f"cpp_extension.load: {name} does not compile: {shlex.join(words)}\n{why}")
            os.replace(made.name, output)
    return import_library(output, name) if is_python_module else load_library(output)
