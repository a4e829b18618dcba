"""Padding: more elements around a signal, an image or a volume."""

from . import functional as F
from .module import Module


class _Pad(Module):
    _n, _mode = 0, "constant"

    def __init__(self, padding):
        super().__init__()
        self.padding = (padding,) * (2 * self._n) if isinstance(padding, int) else tuple(padding)
        if len(self.padding) != 2 * self._n:
            raise ValueError(
                f"{type(self).__name__}: padding is {self.padding}; "
                f"give one number, or {2 * self._n}: before and after each axis, the last axis first."
            )

    def forward(self, x):
        return F.pad(x, self.padding, mode=self._mode)

    def extra_repr(self):
        return str(self.padding)


class _ConstantPad(_Pad):
    def __init__(self, padding, value):
        super().__init__(padding)
        self.value = value

    def forward(self, x):
        return F.pad(x, self.padding, mode="constant", value=self.value)

    def extra_repr(self):
        return f"padding={self.padding}, value={self.value}"


def _family(base, mode, text, dims=(1, 2, 3)):
    """The classes of one kind of padding, by numbers of axes."""
    shapes = {1: "[n, c, l]", 2: "[n, c, h, w]", 3: "[n, c, d, h, w]"}
    return [
        type(
            f"{text[0]}{n}d",
            (base,),
            {
                "_n": n,
                "_mode": mode,
                "__module__": __name__,
                "__doc__": (
                    f"{text[1]} around {shapes[n]}; one number of them, or before and after each axis, the last first."
                ),
            },
        )
        for n in dims
    ]


ConstantPad1d, ConstantPad2d, ConstantPad3d = _family(_ConstantPad, "constant", ("ConstantPad", "A value"))
ZeroPad1d, ZeroPad2d, ZeroPad3d = _family(_Pad, "constant", ("ZeroPad", "Zeros"))
ReflectionPad1d, ReflectionPad2d, ReflectionPad3d = _family(_Pad, "reflect", ("ReflectionPad", "The mirror image"))
ReplicationPad1d, ReplicationPad2d, ReplicationPad3d = _family(
    _Pad, "replicate", ("ReplicationPad", "The outermost elements")
)
CircularPad1d, CircularPad2d, CircularPad3d = _family(
    _Pad, "circular", ("CircularPad", "The elements of the other end")
)
