"""Between local and global values, for tensors in lists, tuples and dicts (a state_dict, a batch);
and regions in which new tensors are global."""

import warnings

from .. import _C

__all__ = ["current_global_mode", "global_mode", "to_global", "to_local"]


def to_global(input, placement=None, sbp=None, warn_on_non_tensor_leaf=True, **kwargs):
    """Returns input with its tensors made global, or brought to another layout;
    lists, tuples and dicts in it are copied.

    sbp may be a function: of the tensor, or where input is a dict of (dict, tensor). Local tensors need a placement and
    an sbp. What is not a tensor is left unchanged, with a warning. A None, the value of a rank outside a
    source's placement, is left unchanged, too.
    kwargs: as Tensor.to_global has. Collective.
    """
    if placement is None and sbp is None:
        raise ValueError(
            "to_global: neither a placement nor an sbp was given. Local tensors need both, global ones at least one."
        )

    def convert(tensor):
        if callable(sbp) and not isinstance(sbp, _C.sbp.sbp):
            return tensor.to_global(
                placement=placement, sbp=sbp(input, tensor) if isinstance(input, dict) else sbp(tensor), **kwargs
            )
        return tensor.to_global(placement=placement, sbp=sbp, **kwargs)

    return _map(input, convert, "to_global", warn_on_non_tensor_leaf)


def to_local(input, *, copy=False):
    """Returns input with its global tensors replaced by what this rank holds of them;
    lists, tuples and dicts in it are copied."""
    return _map(input, lambda t: t.to_local(copy=copy) if t.is_global else t, "to_local", True)


def _map(value, convert, call, warn):
    if isinstance(value, _C.Tensor):
        return convert(value)
    if isinstance(value, dict):
        items = ((k, _map(v, convert, call, warn)) for k, v in value.items())
        return dict(items) if type(value) is dict else type(value)(items)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map(v, convert, call, warn) for v in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_map(v, convert, call, warn) for v in value)
    if warn and value is not None:
        warnings.warn(f"{call}: a {type(value).__name__} is not a tensor and is left unchanged.", stacklevel=3)
    return value


class global_mode:
    """For a `with` block: tensors that are made from nothing (ones, randn, tensor, ...) are global, with this placement
    and sbp, where the call does not say otherwise; a device in it chooses the placement's type. x.device and
    x.to(device) may be asked of global tensors.

    global_mode(False) ends this for a block.
    """

    def __init__(self, enabled, placement=None, sbp=None):
        if enabled and (placement is None or sbp is None):
            raise ValueError("global_mode: a region needs a placement and an sbp.")
        if not enabled and not (placement is None and sbp is None):
            raise ValueError("global_mode: global_mode(False) takes neither a placement nor an sbp.")
        self._asked = bool(enabled), placement, sbp
        self._before = []

    def __enter__(self):
        self._before.append(_C.exchange_global_mode(*self._asked))
        return self

    def __exit__(self, *error):
        _C.exchange_global_mode(*self._before.pop())


class current_global_mode:
    """The region that this rank is in: is_enabled, and, where it is, placement and sbp."""

    def __init__(self):
        self._enabled, self._placement, self._sbp = _C.global_mode()

    @property
    def is_enabled(self):
        return self._enabled

    @property
    def placement(self):
        return self._of("placement", self._placement)

    @property
    def sbp(self):
        return self._of("sbp", self._sbp)

    def _of(self, name, value):
        if not self._enabled:
            raise RuntimeError(f"current_global_mode: there is no {name}, as no global_mode(True, ...) is open.")
        return value
