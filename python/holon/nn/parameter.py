"""Parameter, a tensor that a module owns and an optimizer changes; and where new ones are put (`Where`)."""

from fnmatch import fnmatchcase

from .. import _C

Tensor = _C.Tensor


class Parameter(Tensor):
    """A tensor that becomes part of a module when it is assigned to one of its attributes.

    Shares memory with `data`, outside the recorded graph.
    """

    def __new__(cls, data, requires_grad=True):
        if not isinstance(data, Tensor):
            raise TypeError(
                f"a Parameter is made from a tensor, not from {type(data).__name__}: "
                "write nn.Parameter(holon.tensor(...))."
            )
        self = super().__new__(cls, data.detach())
        if not requires_grad and data.dtype.is_floating_point:
            self.requires_grad = True  # one that is frozen from the start is a parameter like one that is frozen later
        self.requires_grad = requires_grad and (data.dtype.is_floating_point or not cls._may_be_integers)
        return self

    _may_be_integers = False  # without a gradient then

    def __repr__(self):
        text = super().__repr__()
        return text if _C.get_printoptions()["gather"] else "Parameter containing:\n" + text

    def __reduce_ex__(self, protocol):
        return Parameter, (self.detach(), self.requires_grad)


def layout(sbp):
    """Returns a function from a parameter's name to its sbp, from such a function,
    a dict of patterns ("*.weight"; the first that fits counts), or one sbp for all."""
    if isinstance(sbp, dict):

        def of(name):
            for pattern, value in sbp.items():
                if fnmatchcase(name, pattern):
                    return value
            raise ValueError(
                f"no pattern of sbp fits '{name}': it has {', '.join(map(repr, sbp)) or 'none'}. "
                "Add it, or '*' for all others."
            )

        return of
    if is_function(sbp):
        return sbp
    return lambda name: sbp


def is_function(sbp):
    # sbp.broadcast may be called as well: broadcast() is broadcast.
    return callable(sbp) and not isinstance(sbp, _C.sbp.sbp)


def broadcast_over(placement):
    """The sbp that is broadcast along every axis of a placement."""
    return [_C.sbp.broadcast] * len(placement.hierarchy)


class Where:
    """Where a module's new tensors are put, from its keyword arguments:
    a device, or a placement with an sbp, which may go by name (see layout)."""

    def __init__(self, placement=None, sbp=None, device=None, dtype=None, bias_sbp=None):
        if (placement is None) != (sbp is None):
            given, lacking = ("sbp", "placement") if placement is None else ("placement", "sbp")
            raise ValueError(f"a global parameter needs a placement and an sbp: {given} is given, {lacking} is not.")
        self.placement, self.sbp, self.device, self.bias_sbp = placement, sbp, device, bias_sbp
        self.dtype = _C.float32 if dtype is None else dtype

    def _options(self, sbp):
        if self.placement is not None:
            return {"placement": self.placement, "sbp": sbp}
        return {} if self.device is None else {"device": self.device}

    def parameter(self, name, *shape):
        """A parameter without values yet."""
        return Parameter(_C.ops["empty"](shape, dtype=self.dtype, **self._options(layout(self.sbp)(name))))

    def bias(self, name, size, axis=0):
        """One number for each output, which are an axis of the weight (None: of no one axis): where one sbp is given
        for the weight, split as that axis, else broadcast."""
        return Parameter(_C.ops["empty"]((size,), dtype=self.dtype, **self._options(self._beside(name, axis))))

    def buffer(self, name, value, *shape):
        """A tensor that is not learned, full of value."""
        return _C.ops["full"](shape, value, dtype=self.dtype, **self._options(layout(self.sbp)(name)))

    def counter(self):
        """An integer 0 that every rank has."""
        sbp = None if self.placement is None else broadcast_over(self.placement)
        return _C.ops["zeros"]((), dtype=_C.int64, **self._options(sbp))

    def below(self, name):
        """The keyword arguments for a submodule of that name, whose names begin with it."""
        sbp = self.sbp
        if isinstance(sbp, dict) or is_function(sbp):
            of = layout(sbp)
            sbp = lambda inner: of(f"{name}.{inner}")  # noqa: E731
        return {"placement": self.placement, "sbp": sbp, "device": self.device, "dtype": self.dtype}

    def _beside(self, name, axis):
        if self.bias_sbp is not None or self.sbp is None:
            return self.bias_sbp
        if isinstance(self.sbp, dict) or is_function(self.sbp):
            return layout(self.sbp)(name)
        each = [self.sbp] if isinstance(self.sbp, _C.sbp.sbp) else self.sbp
        return [_C.sbp.split(0) if s.is_split and s.dim == axis else _C.sbp.broadcast for s in each]
