"""A job function's parameters and its return annotation: placeholders to arrays, and results to what was promised."""

import inspect
import typing as python_typing

import numpy as np

from holon import _C

from .typing import Bundle, Callback, ListListNumpy, ListNumpy, Numpy, Placeholder

LEAVES = (Numpy, ListNumpy, ListListNumpy)


class FixedTensorDef:
    """The older way to say what an argument is: a default value of the parameter."""

    kind = "Numpy"

    def __init__(self, shape, dtype=None, batch_axis=0, name=None):
        self.placeholder = _KINDS[self.kind].Placeholder(tuple(shape), dtype, batch_axis)


class MirroredTensorDef(FixedTensorDef):
    """One array for each device, in the mirrored view."""

    kind = "ListNumpy"

    def __init__(self, shape, dtype=None, name=None):
        super().__init__(shape, dtype, 0)


class MirroredTensorListDef(MirroredTensorDef):
    """A list of arrays for each device, in the mirrored view."""

    kind = "ListListNumpy"


_KINDS = {"Numpy": Numpy, "ListNumpy": ListNumpy, "ListListNumpy": ListListNumpy}


def parameters_of(function):
    """[(name, tree of placeholders)] and the return annotation (inspect.Signature.empty: none)."""
    name = function.__name__
    signature = inspect.signature(function, eval_str=True)
    found, ways = [], set()
    for p in signature.parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise NotImplementedError(
                f"{name}: the parameter {p} accepts any number of arguments. A job function must name each."
            )
        if p.annotation is not p.empty:
            ways.add("annotated")
            found.append((p.name, _from_annotation(p.annotation, name, p.name)))
        elif p.default is not p.empty:
            ways.add("default")
            found.append((p.name, _from_default(p.default, name, p.name)))
        else:
            raise NotImplementedError(
                f"{name}: what is the parameter '{p.name}'? "
                f"Annotate it: {p.name}: tp.Numpy.Placeholder(shape, dtype=...)."
            )
    if len(ways) > 1:
        raise NotImplementedError(f"{name}: some parameters are annotated, others have a default. Annotate all.")
    return found, signature.return_annotation


def _from_annotation(a, function, parameter):
    if isinstance(a, type) and issubclass(a, Placeholder):
        return a
    if python_typing.get_origin(a) is tuple:
        return tuple(_from_annotation(part, function, parameter) for part in python_typing.get_args(a))
    raise NotImplementedError(
        f"{function}: the annotation of '{parameter}' is {a!r}; it must be tp.Numpy.Placeholder(shape, dtype=...), "
        "tp.ListNumpy.Placeholder(...), or tp.Tuple[...] of them."
    )


def _from_default(d, function, parameter):
    if isinstance(d, FixedTensorDef):
        return d.placeholder
    if isinstance(d, (list, tuple)):
        return type(d)(_from_default(part, function, parameter) for part in d)
    if isinstance(d, dict):
        return {k: _from_default(part, function, parameter) for k, part in d.items()}
    raise NotImplementedError(
        f"{function}: the default of '{parameter}' is {type(d).__name__}; it must be FixedTensorDef(shape, dtype), or "
        "the parameter must be annotated: tp.Numpy.Placeholder(shape, dtype=...)."
    )


def placeholders(tree):
    """The leaves, in order."""
    if isinstance(tree, dict):
        return [p for part in tree.values() for p in placeholders(part)]
    if isinstance(tree, (list, tuple)):
        return [p for part in tree for p in placeholders(part)]
    return [tree]


def fill(tree, values):
    """tree with the next of the iterator's values in place of each leaf."""
    if isinstance(tree, dict):
        return {k: fill(part, values) for k, part in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(fill(part, values) for part in tree)
    return next(values)


def arrays_of(job, args, n_devices):
    """Copies of the arguments' arrays, one entry for each placeholder:
    an array, or a list with one entry for each device.

    Errors: another number of arguments, other types or shapes (AssertionError), another dtype (TypeError).
    """
    parameters = job.parameters
    assert len(args) == len(parameters), (
        f"{job.name}: takes {len(parameters)} argument{'s' * (len(parameters) != 1)}"
        f" ({', '.join(name for name, _ in parameters)}), got {len(args)}."
    )
    found = []
    for (name, tree), value in zip(parameters, args):
        _collect(job.name, name, tree, value, n_devices, found)
    return found


def _collect(job, name, tree, value, n, found):
    if isinstance(tree, dict):
        assert isinstance(value, dict) and set(value) == set(tree), (
            f"{job}: argument {name} must be a dict with the keys {list(tree)}, got {_shown(value)}."
        )
        for key, part in tree.items():
            _collect(job, f"{name}[{key!r}]", part, value[key], n, found)
    elif isinstance(tree, (list, tuple)):
        assert isinstance(value, (list, tuple)) and len(value) == len(tree), (
            f"{job}: argument {name} must be a tuple of {len(tree)}, got {_shown(value)}."
        )
        for i, part in enumerate(tree):
            _collect(job, f"{name}[{i}]", part, value[i], n, found)
    elif tree.kind == "Numpy":
        found.append(_array(job, name, tree, value, exact=True))
    else:
        assert isinstance(value, (list, tuple)), (
            f"{job}: argument {name} must be a list with one entry for each of {n} devices, got {_shown(value)}."
        )
        assert len(value) == n, (
            f"{job}: argument {name} has {len(value)} entries; there are {n} devices, and each gets one."
        )
        if tree.kind == "ListNumpy":
            found.append([_array(job, f"{name}[{i}]", tree, v, exact=False) for i, v in enumerate(value)])
        else:
            for i, v in enumerate(value):
                assert isinstance(v, (list, tuple)) and v, (
                    f"{job}: argument {name}[{i}] must be a list of arrays, got {_shown(v)}."
                )
            found.append(
                [
                    [_array(job, f"{name}[{i}][{k}]", tree, a, exact=False) for k, a in enumerate(v)]
                    for i, v in enumerate(value)
                ]
            )


def _array(job, name, placeholder, value, exact):
    want = f"an array of {placeholder.dtype} {list(placeholder.shape)}"
    assert isinstance(value, np.ndarray), (
        f"{job}: argument {name} must be a numpy.ndarray ({want}), got {_shown(value)}."
    )
    if exact:
        assert value.shape == placeholder.shape, (
            f"{job}: argument {name} must have the shape {list(placeholder.shape)} of its placeholder, "
            f"got {list(value.shape)}."
        )
    else:
        assert value.ndim == len(placeholder.shape), (
            f"{job}: argument {name} must have {len(placeholder.shape)} axes as its placeholder "
            f"{list(placeholder.shape)}, got {list(value.shape)}."
        )
        assert value.size <= int(np.prod(placeholder.shape)), (
            f"{job}: argument {name} has the shape {list(value.shape)}: "
            f"more elements than its placeholder {list(placeholder.shape)}."
        )
    try:
        same = _C.parse_dtype(value.dtype) == placeholder.dtype
    except TypeError:
        same = False
    if not same:
        raise TypeError(
            f"{job}: argument {name} must be {placeholder.dtype} as its placeholder, got {value.dtype}. Convert it: "
            f"{name.partition('[')[0]}.astype(...)."
        )
    return np.array(value, order="C")


def _shown(value):
    if isinstance(value, (list, tuple, dict)):
        return f"{type(value).__name__} of {len(value)}"
    return type(value).__name__


# Results


def check_result(job, annotation, result):
    """Whether what the body returned fits the annotation. Errors: AssertionError."""
    from .blob import Blob

    if annotation is inspect.Signature.empty:
        return
    if annotation is None or annotation is type(None):
        assert result is None, f"{job}: is annotated to return None, and returns {_shown(result)}."
        return
    origin, args = python_typing.get_origin(annotation), python_typing.get_args(annotation)
    if annotation in LEAVES:
        assert isinstance(result, Blob), (
            f"{job}: the annotation promises tp.{annotation.__name__}, and the body returns {_shown(result)}."
        )
    elif origin is Callback:
        check_result(job, args[0], result)
    elif origin is Bundle:
        assert args[0] in LEAVES, (
            f"{job}: tp.Bundle[...] is of tp.Numpy, tp.ListNumpy or tp.ListListNumpy, not {args[0]!r}."
        )
    elif origin is tuple:
        assert isinstance(result, tuple) and len(result) == len(args), (
            f"{job}: the annotation promises a tuple of {len(args)}, and the body returns {_shown(result)}."
        )
        for a, r in zip(args, result):
            check_result(job, a, r)
    elif origin is list:
        assert isinstance(result, list), (
            f"{job}: the annotation promises a list, and the body returns {_shown(result)}."
        )
        for r in result:
            check_result(job, args[0], r)
    elif origin is dict:
        assert isinstance(result, dict), (
            f"{job}: the annotation promises a dict, and the body returns {_shown(result)}."
        )
        for k, r in result.items():
            assert isinstance(k, args[0]), (
                f"{job}: the annotation promises keys of {args[0].__name__}, and the body returns the key {k!r}."
            )
            check_result(job, args[1], r)
    else:
        raise AssertionError(
            f"{job}: the return annotation {annotation!r} is none of tp.Numpy, tp.ListNumpy, tp.ListListNumpy, "
            "tp.Tuple, tp.List, tp.Dict, tp.Callback, tp.Bundle and None."
        )


def converted(annotation, value):
    """A nesting of Values as the annotation has it."""
    from .results import Value

    if annotation is inspect.Signature.empty:
        return value
    origin, args = python_typing.get_origin(annotation), python_typing.get_args(annotation)
    if origin is Bundle or annotation in LEAVES:
        leaf = args[0] if origin is Bundle else annotation
        if isinstance(value, dict):
            return {k: converted(annotation, v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(converted(annotation, v) for v in value)
        assert isinstance(value, Value)
        return value.numpy() if leaf is Numpy else value.numpy_list() if leaf is ListNumpy else value.numpy_lists()
    if origin is tuple:
        return tuple(converted(a, v) for a, v in zip(args, value))
    if origin is list:
        return [converted(args[0], v) for v in value]
    if origin is dict:
        return {k: converted(args[1], v) for k, v in value.items()}
    return None
