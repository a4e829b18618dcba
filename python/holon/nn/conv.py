"""Convolutions of signals, images and volumes, and their transposes."""

from . import functional as F
from .linear import _Weighted
from .parameter import Where


class _Conv(_Weighted):
    """Convolution; weight [out, in / groups, window...]. padding: numbers, "valid" or "same"."""

    _n = 0  # axes of the window

    def __init__(
        self,
        in_channels,
        out_channels,
        kernel_size,
        stride=1,
        padding=0,
        dilation=1,
        groups=1,
        bias=True,
        padding_mode="zeros",
        *,
        placement=None,
        sbp=None,
        bias_sbp=None,
        device=None,
        dtype=None,
    ):
        super().__init__()
        self._keep(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, padding_mode)
        if self.padding == "same" and any(s != 1 for s in self.stride):
            raise ValueError(
                f"{type(self).__name__}: padding 'same' is for stride 1, not {self.stride}. "
                "Give the padding in numbers."
            )
        where = Where(placement, sbp, device, dtype, bias_sbp)
        self.weight = where.parameter("weight", out_channels, in_channels // groups, *self.kernel_size)
        self.register_parameter("bias", where.bias("bias", out_channels) if bias else None)
        self.reset_parameters()

    def _keep(self, in_channels, out_channels, kernel_size, stride, padding, dilation, groups, padding_mode):
        name = type(self).__name__
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ValueError(
                f"{name}: groups is {groups}, which does not divide in_channels {in_channels} and out_channels "
                f"{out_channels}. Choose a common divisor."
            )
        if padding_mode not in ("zeros", "reflect", "replicate", "circular"):
            raise ValueError(
                f"{name}: padding_mode is {padding_mode!r}; it must be 'zeros', 'reflect', 'replicate' or 'circular'."
            )
        if isinstance(padding, str) and padding not in ("valid", "same"):
            raise ValueError(f"{name}: padding is {padding!r}; it must be 'valid', 'same' or numbers.")
        self.in_channels, self.out_channels, self.groups, self.padding_mode = (
            in_channels,
            out_channels,
            groups,
            padding_mode,
        )
        self.kernel_size, self.stride, self.dilation = (
            F.repeated(v, self._n, name) for v in (kernel_size, stride, dilation)
        )
        self.padding = padding if isinstance(padding, str) else F.repeated(padding, self._n, name)

    def forward(self, x):
        convolve, padding = getattr(F, f"conv{self._n}d"), self.padding
        if self.padding_mode != "zeros":
            x, padding = F.pad(x, self._sides(), mode=self.padding_mode), 0
        return convolve(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)

    def _sides(self):
        # Before and after each axis, the last axis first.
        if self.padding == "same":
            sides = F.same_padding(self.kernel_size, self.dilation)
        else:
            sides = [(p, p) for p in ((0,) * self._n if self.padding == "valid" else self.padding)]
        return [p for pair in reversed(sides) for p in pair]

    def extra_repr(self):
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        if self.padding not in ((0,) * self._n, "valid"):
            text += f", padding={self.padding!r}"
        if self.dilation != (1,) * self._n:
            text += f", dilation={self.dilation}"
        if any(getattr(self, "output_padding", ())):
            text += f", output_padding={self.output_padding}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        if self.bias is None:
            text += ", bias=False"
        return text if self.padding_mode == "zeros" else text + f", padding_mode={self.padding_mode}"


class Conv1d(_Conv):
    """Convolution of [n, c, l]; weight [out, in / groups, k]; padding: a number, "valid" or "same"."""

    _n = 1


class Conv2d(_Conv):
    """Convolution of [n, c, h, w]; weight [out, in / groups, kh, kw]; padding: numbers, "valid" or "same"."""

    _n = 2


class Conv3d(_Conv):
    """Convolution of [n, c, d, h, w]; weight [out, in / groups, kd, kh, kw]; padding: numbers, "valid" or "same"."""

    _n = 3


class _ConvTranspose(_Conv):
    """The transpose of a convolution, which maps its outputs to its inputs; weight [in, out / groups, window...]."""

    def __init__(
        self,
        in_channels,
        out_channels,
        kernel_size,
        stride=1,
        padding=0,
        output_padding=0,
        groups=1,
        bias=True,
        dilation=1,
        padding_mode="zeros",
        *,
        placement=None,
        sbp=None,
        bias_sbp=None,
        device=None,
        dtype=None,
    ):
        super(_Weighted, self).__init__()
        if padding_mode != "zeros" or isinstance(padding, str):
            raise ValueError(
                f"{type(self).__name__}: padding is given in numbers and is of zeros; "
                f"found {padding!r}, {padding_mode!r}."
            )
        self._keep(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, padding_mode)
        self.output_padding = F.repeated(output_padding, self._n, type(self).__name__)
        where = Where(placement, sbp, device, dtype, bias_sbp)
        self.weight = where.parameter("weight", in_channels, out_channels // groups, *self.kernel_size)
        # The outputs are axis 1 of the weight, and all of them only without groups.
        self.register_parameter(
            "bias", where.bias("bias", out_channels, axis=1 if groups == 1 else None) if bias else None
        )
        self.reset_parameters()

    def forward(self, x, output_size=None):
        transpose = getattr(F, f"conv_transpose{self._n}d")
        extra = self.output_padding if output_size is None else self._output_padding(x, output_size)
        return transpose(x, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation)

    def _output_padding(self, x, output_size):
        """What is lacking to output_size: several input sizes of a convolution give one output size."""
        sizes = tuple(output_size)[-self._n :]
        least = [
            (n - 1) * s - 2 * p + d * (k - 1) + 1
            for n, s, p, d, k in zip(x.shape[-self._n :], self.stride, self.padding, self.dilation, self.kernel_size)
        ]
        if len(sizes) != self._n or any(
            not 0 <= size - low < max(s, d) for size, low, s, d in zip(sizes, least, self.stride, self.dilation)
        ):
            most = [low + max(s, d) - 1 for low, s, d in zip(least, self.stride, self.dilation)]
            raise ValueError(
                f"{type(self).__name__}: output_size is {list(sizes)}; "
                f"for x of {list(x.shape)} it must be from {least} to {most}."
            )
        return tuple(size - low for size, low in zip(sizes, least))


class ConvTranspose1d(_ConvTranspose):
    """The transpose of Conv1d; weight [in, out / groups, k]."""

    _n = 1


class ConvTranspose2d(_ConvTranspose):
    """The transpose of Conv2d; weight [in, out / groups, kh, kw]."""

    _n = 2


class ConvTranspose3d(_ConvTranspose):
    """The transpose of Conv3d; weight [in, out / groups, kd, kh, kw]."""

    _n = 3
