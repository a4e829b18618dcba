"""Layers. Those with parameters take placement and sbp (of the weight) and make them global at once; their first values do not
depend on the layout."""
import math

from .. import _C
from . import functional as F
from . import init
from .module import Module, Parameter


def _empty(shape, placement, sbp, device, dtype):
    """A parameter without values yet, local or global."""
    if (placement is None) != (sbp is None):
        given, lacking = ("sbp", "placement") if placement is None else ("placement", "sbp")
        raise ValueError(f"a global parameter needs a placement and an sbp: {given} is given, {lacking} is not.")
    where = {"placement": placement, "sbp": sbp} if placement is not None else {"device": device}
    return Parameter(_C.ops["empty"](shape, dtype=dtype, **{k: v for k, v in where.items() if v is not None}))


def _bias_sbp(bias_sbp, weight_sbp):
    """The layout of a bias [out] beside a weight [out, ...]: split where axis 0 is, otherwise broadcast."""
    if bias_sbp is not None or weight_sbp is None:
        return bias_sbp
    split = _C.sbp.split(0)
    one = isinstance(weight_sbp, _C.sbp.sbp)
    return [split if s == split else _C.sbp.broadcast for s in ([weight_sbp] if one else weight_sbp)]


class _Weighted(Module):
    """What the layers with weight [out, in, ...] and bias [out] share."""

    def _make(self, shape, bias, placement, sbp, bias_sbp, device, dtype):
        self.weight = _empty(shape, placement, sbp, device, dtype)
        self.register_parameter(
            "bias", _empty(shape[:1], placement, _bias_sbp(bias_sbp, sbp), device, dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self):
        """Draws weight and bias evenly from +-1 / sqrt(fan_in)."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(max(init.fans(self.weight)[0], 1))
            init.uniform_(self.bias, -bound, bound)


class Linear(_Weighted):
    """x @ weight.T + bias, weight [out, in]. weight S(0) makes it column-parallel, S(1) row-parallel."""

    def __init__(self, in_features, out_features, bias=True, *, placement=None, sbp=None, bias_sbp=None, device=None,
                 dtype=_C.float32):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self._make((out_features, in_features), bias, placement, sbp, bias_sbp, device, dtype)

    def forward(self, x):
        return _C.ops["linear"](x, self.weight, self.bias)

    def extra_repr(self):
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Conv2d(_Weighted):
    """Convolution of [n, in, h, w]; weight [out, in / groups, kh, kw]; padding: numbers, "valid" or "same"."""

    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1, bias=True, *,
                 placement=None, sbp=None, bias_sbp=None, device=None, dtype=_C.float32):
        super().__init__()
        if in_channels % groups or out_channels % groups:
            raise ValueError(f"Conv2d: groups is {groups}, which does not divide in_channels {in_channels} and out_channels "
                             f"{out_channels}. Choose a common divisor.")
        self.in_channels, self.out_channels, self.groups, self.padding = in_channels, out_channels, groups, padding
        self.kernel_size, self.stride, self.dilation = F._pair(kernel_size), F._pair(stride), F._pair(dilation)
        self._make((out_channels, in_channels // groups, *self.kernel_size), bias, placement, sbp, bias_sbp, device, dtype)

    def forward(self, x):
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)

    def extra_repr(self):
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        if self.padding:
            text += f", padding={self.padding!r}"
        if self.dilation != (1, 1):
            text += f", dilation={self.dilation}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        return text if self.bias is not None else text + ", bias=False"


class LayerNorm(Module):
    """Mean 0 and variance 1 over the last axes; then * weight + bias. sbp is that of weight and bias."""

    def __init__(self, normalized_shape, eps=1e-5, elementwise_affine=True, bias=True, *, placement=None, sbp=None,
                 device=None, dtype=_C.float32):
        super().__init__()
        self.normalized_shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        for name, made in (("weight", elementwise_affine), ("bias", elementwise_affine and bias)):
            self.register_parameter(
                name, _empty(self.normalized_shape, placement, sbp, device, dtype) if made else None)
        self.reset_parameters()

    def reset_parameters(self):
        """Sets weight to 1 and bias to 0."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, x):
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self):
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class Embedding(Module):
    """A table [num_embeddings, embedding_dim] whose rows integers name. sbp S(0) splits the vocabulary."""

    def __init__(self, num_embeddings, embedding_dim, *, placement=None, sbp=None, device=None, dtype=_C.float32):
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.weight = _empty((num_embeddings, embedding_dim), placement, sbp, device, dtype)
        self.reset_parameters()

    def reset_parameters(self):
        """Draws from the standard normal distribution."""
        init.normal_(self.weight)

    def forward(self, indices):
        return F.embedding(indices, self.weight)

    def extra_repr(self):
        return f"{self.num_embeddings}, {self.embedding_dim}"


class Dropout(Module):
    """In training, sets elements to zero with probability p and scales the others by 1 / (1 - p)."""

    def __init__(self, p=0.5, inplace=False):
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"Dropout: p is {p}; it must lie between 0 and 1.")
        self.p, self.inplace = p, inplace

    def forward(self, x):
        return F.dropout(x, self.p, self.training, self.inplace)

    def extra_repr(self):
        return f"p={self.p}, inplace={self.inplace}"


class MaxPool2d(Module):
    """The largest element of each window of [n, c, h, w]."""

    _op = "max_pool2d"

    def __init__(self, kernel_size, stride=None, padding=0, ceil_mode=False):
        super().__init__()
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.ceil_mode = padding, ceil_mode

    def forward(self, x):
        return _C.ops[self._op](x, self.kernel_size, self.stride, self.padding, ceil_mode=self.ceil_mode)

    def extra_repr(self):
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, ceil_mode={self.ceil_mode}"


class AvgPool2d(MaxPool2d):
    """The mean of each window of [n, c, h, w], padding counted."""

    _op = "avg_pool2d"


class Identity(Module):
    """Returns what it is given; takes any arguments when made."""

    def __init__(self, *args, **kwargs):
        super().__init__()

    def forward(self, x):
        return x


class ReLU(Module):
    def __init__(self, inplace=False):
        super().__init__()
        self.inplace = inplace

    def forward(self, x):
        return F.relu(x, self.inplace)

    def extra_repr(self):
        return "inplace=True" if self.inplace else ""


class GELU(Module):
    def __init__(self, approximate="none"):
        super().__init__()
        self.approximate = approximate

    def forward(self, x):
        return _C.ops["gelu"](x, approximate=self.approximate)

    def extra_repr(self):
        return f"approximate={self.approximate!r}"


class SiLU(Module):
    def forward(self, x):
        return _C.ops["silu"](x)


class Tanh(Module):
    def forward(self, x):
        return _C.ops["tanh"](x)


class Sigmoid(Module):
    def forward(self, x):
        return _C.ops["sigmoid"](x)


class Softmax(Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        return _C.ops["softmax"](x, self.dim)

    def extra_repr(self):
        return f"dim={self.dim}"


class LogSoftmax(Softmax):
    def forward(self, x):
        return _C.ops["log_softmax"](x, self.dim)


class Flatten(Module):
    """Joins the axes from start_dim to end_dim."""

    def __init__(self, start_dim=1, end_dim=-1):
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x):
        return x.flatten(self.start_dim, self.end_dim)

    def extra_repr(self):
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class CrossEntropyLoss(Module):
    """See functional.cross_entropy."""

    def __init__(self, ignore_index=-100, reduction="mean", label_smoothing=0.0):
        super().__init__()
        self.ignore_index, self.reduction, self.label_smoothing = ignore_index, reduction, label_smoothing

    def forward(self, input, target):
        return F.cross_entropy(input, target, ignore_index=self.ignore_index, reduction=self.reduction,
                               label_smoothing=self.label_smoothing)


class MSELoss(Module):
    """The squared difference."""

    def __init__(self, reduction="mean"):
        super().__init__()
        self.reduction = reduction

    def forward(self, input, target):
        return _C.ops["mse_loss"](input, target, reduction=self.reduction)


class L1Loss(MSELoss):
    """The absolute difference."""

    def forward(self, input, target):
        return F.l1_loss(input, target, reduction=self.reduction)
