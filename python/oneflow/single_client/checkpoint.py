"""Values of variables as a whole, and checkpoints: a folder for each variable, with its bytes and what they are."""

import os
import re

import numpy as np

from holon import _C

from . import session as _session

__all__ = ["get", "get_all_variables", "load_variables", "save"]

_STEP = "System-Train-TrainStep-"
# The words of the older files for numpy's dtypes.
_WORDS = {
    "float32": "kFloat",
    "float64": "kDouble",
    "float16": "kFloat16",
    "int8": "kInt8",
    "int32": "kInt32",
    "int64": "kInt64",
    "uint8": "kUInt8",
    "bool": "kBool",
    "int16": "kInt16",
}


class StoredVariable:
    """The value of a variable: numpy(), shape, dtype. Of a checkpoint the file is read when the value is requested."""

    def __init__(self, name, shape, dtype, read):
        self.name, self.shape, self._kind, self._read = name, tuple(shape), np.dtype(dtype), read

    @property
    def dtype(self):
        return _C.parse_dtype(self._kind)

    def numpy(self, *_):
        return self._read()

    ndarray = numpy

    def __array__(self, dtype=None, copy=None):
        return self.numpy().astype(dtype or self._kind)

    def __repr__(self):
        return f"variable {self.name}: {self.dtype} {list(self.shape)}"


def get_all_variables():
    """{name: value} of all variables, states of optimizers and numbers of calls among them, as they are now.
    Collective under the launcher."""
    session = _session.default()
    values = session.run(lambda rank: {name: rank.read(name) for name in rank.variables})
    found = {}
    for name in values[0]:
        array = next(v[name] for v in values if v[name] is not None)
        found[name] = StoredVariable(name, array.shape, array.dtype, lambda array=array: array)
    for job in session.jobs.values():
        if job.optimizer is not None:
            step = np.array([job.step], np.int64)
            found[_STEP + job.name] = StoredVariable(_STEP + job.name, step.shape, step.dtype, lambda step=step: step)
    return found


def load_variables(value_dict, ignore_mismatch=True):
    """Gives variables the values of {name: array, or what checkpoint.get() and get_all_variables() return}.
    The others keep theirs.

    Errors: a name that no variable has (RuntimeError, unless ignore_mismatch); another shape or dtype (AssertionError).
    """
    assert isinstance(value_dict, dict), (
        f"load_variables: takes a dict from names to values, got {type(value_dict).__name__}."
    )
    session = _session.default()
    known = session.run(lambda rank: {name: (tuple(t.shape), t.dtype) for name, t in rank.variables.items()})[0]
    jobs = {_STEP + job.name: job for job in session.jobs.values() if job.optimizer is not None}
    unknown = [name for name in value_dict if name not in known and name not in jobs]
    if unknown and not ignore_mismatch:
        raise RuntimeError(
            f"load_variables: there is no variable named {', '.join(map(repr, sorted(unknown)))}. "
            f"The session has {', '.join(sorted(known))}."
        )
    arrays = {}
    for name, value in value_dict.items():
        if name in unknown:
            continue
        array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
        shape, dtype = known.get(name, ((1,), _C.parse_dtype("int64")))
        assert tuple(array.shape) == shape, (
            f"load_variables: '{name}' has the shape {list(shape)}; the value has {list(array.shape)}."
        )
        assert _C.parse_dtype(array.dtype) == dtype, f"load_variables: '{name}' is {dtype}; the value is {array.dtype}."
        arrays[name] = np.array(array, order="C")

    def write(rank):
        for name, array in arrays.items():
            if name in known:
                rank.write(name, array)

    session.run(write)
    for name, job in jobs.items():
        if name in arrays:
            job.step = int(arrays[name][0])


def save(path, var_dict=None):
    """Writes variables (all, if None) to a folder, which must be empty or not exist. Collective under the launcher."""
    path = os.fspath(path)
    values = get_all_variables() if var_dict is None else var_dict
    assert not os.path.exists(path) or os.path.isdir(path) and not os.listdir(path), (
        f"checkpoint.save: {path} is not an empty folder. Name one that does not exist."
    )
    session = _session.default()
    session.run(lambda rank: _C.barrier())  # every process has looked
    if _C.rank() == 0:
        for name, value in values.items():
            array = np.ascontiguousarray(value.numpy() if hasattr(value, "numpy") else value)
            folder = _folder(path, name)
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, "out"), "wb") as f:
                f.write(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
            with open(os.path.join(folder, "meta"), "w") as f:
                dims = "".join(f"  dim: {d}\n" for d in np.shape(value.numpy() if hasattr(value, "numpy") else value))
                f.write(f"shape {{\n{dims}}}\ndata_type: {_WORDS[array.dtype.name]}\n")
        os.makedirs(path, exist_ok=True)
        open(os.path.join(path, "snapshot_done"), "w").close()
    session.run(lambda rank: _C.barrier())


def get(path):
    """{name: value} of what save() wrote. Errors: no folder (AssertionError); a damaged one (RuntimeError)."""
    path = os.fspath(path)
    assert os.path.isdir(path), f"checkpoint.get: {path} is not a folder."
    if not os.path.exists(os.path.join(path, "snapshot_done")):
        raise RuntimeError(
            f"checkpoint.get: {path} has no snapshot_done: it is not a checkpoint, or was not written completely."
        )
    found = {}
    for folder, _, files in os.walk(path):
        if folder != path and ("meta" in files or "out" in files or not os.listdir(folder)):
            name = os.path.relpath(folder, path).replace(os.sep, "/")
            found[name] = _stored(name, folder)
    return dict(sorted(found.items()))


def _folder(path, name):
    """Of a variable; its name may have slashes."""
    assert not os.path.isabs(name) and ".." not in name.split("/"), (
        f"checkpoint.save: the variable's name '{name}' leads out of the folder."
    )
    return os.path.join(path, *name.split("/"))


def _stored(name, folder):
    def damaged(why):
        return RuntimeError(f"checkpoint.get: {folder} is damaged: {why}.")

    try:
        with open(os.path.join(folder, "meta")) as f:
            text = f.read()
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(error) from error
    shape = tuple(int(d) for d in re.findall(r"\bdim:\s*(\d+)", text))
    word = re.search(r"\bdata_type:\s*(\w+)", text)
    dtype = next((d for d, w in _WORDS.items() if word and w == word[1]), None)
    if dtype is None:
        raise damaged(f"meta names no known data_type: {text[:80]!r}")
    dtype, file = np.dtype(dtype), os.path.join(folder, "out")
    want = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    size = os.path.getsize(file) if os.path.exists(file) else -1
    if size != want:
        raise damaged(f"out has {max(size, 0)} bytes; {dtype} {list(shape)} needs {want}")
    return StoredVariable(
        name, shape, dtype, lambda: np.fromfile(file, dtype.newbyteorder("<")).astype(dtype).reshape(shape)
    )
