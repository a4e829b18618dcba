"""Layers that are products with a weight, and those that change nothing but the shape."""

import math

from . import functional as F
from . import init
from .module import Module
from .options import FunctionModule
from .parameter import Where


class Identity(Module):
    """Returns what it is given; takes any arguments when made."""

    def __init__(self, *args, **kwargs):
        super().__init__()

    def forward(self, x):
        return x


class Flatten(FunctionModule):
    """Joins the axes from start_dim to end_dim."""

    _function, _options = "flatten", {"start_dim": 1, "end_dim": -1}


class Unflatten(Module):
    """Cuts the axis dim into axes of sizes unflattened_size, of which one may be -1."""

    def __init__(self, dim, unflattened_size):
        super().__init__()
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def forward(self, x):
        dim = self.dim + x.ndim if self.dim < 0 else self.dim
        if not 0 <= dim < x.ndim:
            raise IndexError(f"Unflatten: dim {self.dim} is out of range for x of shape {list(x.shape)}.")
        # A -1 is inferred from this axis, not from all.
        known = math.prod(n for n in self.unflattened_size if n != -1)
        if known < 1 or x.shape[dim] % known or (-1 not in self.unflattened_size and known != x.shape[dim]):
            raise ValueError(
                f"Unflatten: axis {self.dim} of {list(x.shape)} cannot be cut into {list(self.unflattened_size)}."
            )
        sizes = [x.shape[dim] // known if n == -1 else n for n in self.unflattened_size]
        return x.reshape([*x.shape[:dim], *sizes, *x.shape[dim + 1 :]])

    def extra_repr(self):
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


class _Weighted(Module):
    """What layers with weight and bias share: how they are drawn."""

    def reset_parameters(self):
        """Draws weight and bias evenly from +-1 / sqrt(fan_in)."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(max(init.fans(self.weight)[0], 1))
            init.uniform_(self.bias, -bound, bound)


class Linear(_Weighted):
    """x @ weight.T + bias, weight [out, in]. weight S(0) makes it column-parallel, S(1) row-parallel."""

    def __init__(
        self, in_features, out_features, bias=True, *, placement=None, sbp=None, bias_sbp=None, device=None, dtype=None
    ):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        where = Where(placement, sbp, device, dtype, bias_sbp)
        self.weight = where.parameter("weight", out_features, in_features)
        self.register_parameter("bias", where.bias("bias", out_features) if bias else None)
        self.reset_parameters()

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self):
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Bilinear(Module):
    """x1 @ weight[o] @ x2 + bias[o] for each output o, weight [out, in1, in2]."""

    def __init__(
        self,
        in1_features,
        in2_features,
        out_features,
        bias=True,
        *,
        placement=None,
        sbp=None,
        bias_sbp=None,
        device=None,
        dtype=None,
    ):
        super().__init__()
        self.in1_features, self.in2_features, self.out_features = in1_features, in2_features, out_features
        where = Where(placement, sbp, device, dtype, bias_sbp)
        self.weight = where.parameter("weight", out_features, in1_features, in2_features)
        self.register_parameter("bias", where.bias("bias", out_features) if bias else None)
        self.reset_parameters()

    def reset_parameters(self):
        """Draws weight and bias evenly from +-1 / sqrt(in1_features)."""
        bound = 1 / math.sqrt(max(self.in1_features, 1))
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def forward(self, x1, x2):
        return F.bilinear(x1, x2, self.weight, self.bias)

    def extra_repr(self):
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )
