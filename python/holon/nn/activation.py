"""Activations: element by element, or a softmax along an axis."""

from . import functional as F
from . import init
from .module import Module
from .options import REQUIRED, FunctionModule
from .parameter import Where


class ReLU(FunctionModule):
    """max(x, 0)."""

    _function, _options = "relu", {"inplace": False}


class ReLU6(FunctionModule):
    """min(max(x, 0), 6)."""

    _function, _options = "relu6", {"inplace": False}


class LeakyReLU(FunctionModule):
    """x where it is positive, negative_slope * x elsewhere."""

    _function, _options = "leaky_relu", {"negative_slope": 0.01, "inplace": False}


class ELU(FunctionModule):
    """x where it is positive, alpha * (exp(x) - 1) elsewhere."""

    _function, _options = "elu", {"alpha": 1.0, "inplace": False}


class CELU(FunctionModule):
    """x where it is positive, alpha * (exp(x / alpha) - 1) elsewhere."""

    _function, _options = "celu", {"alpha": 1.0, "inplace": False}


class SELU(FunctionModule):
    """ELU with the scale and alpha under which layers keep mean 0 and variance 1."""

    _function, _options = "selu", {"inplace": False}


class GELU(FunctionModule):
    """x * Phi(x), with the normal distribution's Phi; approximate: 'none', or 'tanh'."""

    _function, _options = "gelu", {"approximate": "none"}


class QuickGELU(FunctionModule):
    """x * sigmoid(1.702 * x)."""

    _function = "quick_gelu"


class SiLU(FunctionModule):
    """x * sigmoid(x)."""

    _function, _options = "silu", {"inplace": False}


class Mish(FunctionModule):
    """x * tanh(softplus(x))."""

    _function, _options = "mish", {"inplace": False}


class Sigmoid(FunctionModule):
    """1 / (1 + exp(-x))."""

    _function = "sigmoid"


class LogSigmoid(FunctionModule):
    """log(sigmoid(x))."""

    _function = "logsigmoid"


class Tanh(FunctionModule):
    """The hyperbolic tangent."""

    _function = "tanh"


class Softplus(FunctionModule):
    """log(1 + exp(beta * x)) / beta; x itself where beta * x is over threshold."""

    _function, _options = "softplus", {"beta": 1.0, "threshold": 20.0}


class Softsign(FunctionModule):
    """x / (1 + |x|)."""

    _function = "softsign"


class Softshrink(FunctionModule):
    """x moved towards 0 by lambd, 0 within."""

    _function, _options = "softshrink", {"lambd": 0.5}

    def extra_repr(self):
        return str(self.lambd)


class Hardshrink(FunctionModule):
    """x where |x| > lambd, 0 elsewhere."""

    _function, _options = "hardshrink", {"lambd": 0.5}

    def extra_repr(self):
        return str(self.lambd)


class Tanhshrink(FunctionModule):
    """x - tanh(x)."""

    _function = "tanhshrink"


class Threshold(FunctionModule):
    """x where it is over threshold, value elsewhere."""

    _function, _options = "threshold", {"threshold": REQUIRED, "value": REQUIRED, "inplace": False}


class Hardtanh(FunctionModule):
    """x within [min_val, max_val], the nearer bound elsewhere."""

    _function, _options = "hardtanh", {"min_val": -1.0, "max_val": 1.0, "inplace": False}


class Hardswish(FunctionModule):
    """x * relu6(x + 3) / 6."""

    _function, _options = "hardswish", {"inplace": False}


class Hardsigmoid(FunctionModule):
    """relu6(x + 3) / 6."""

    _function, _options = "hardsigmoid", {"inplace": False}


class GLU(FunctionModule):
    """a * sigmoid(b), a and b being the halves of x along dim."""

    _function, _options = "glu", {"dim": -1}


class Softmax(FunctionModule):
    """exp(x) over its sum along dim; without dim along axis 0 of 0, 1 or 3 axes, and axis 1 of others."""

    _function, _options = "softmax", {"dim": None}


class Softmin(FunctionModule):
    """softmax(-x); dim as for Softmax."""

    _function, _options = "softmin", {"dim": None}


class LogSoftmax(FunctionModule):
    """The logarithm of softmax; dim as for Softmax."""

    _function, _options = "log_softmax", {"dim": None}


class Softmax2d(Module):
    """softmax over the channels of [n, c, h, w] or [c, h, w]."""

    def forward(self, x):
        if x.ndim not in (3, 4):
            raise ValueError(f"Softmax2d: x must be [n, c, h, w] or [c, h, w]; found {list(x.shape)}.")
        return F.softmax(x, -3)


class PReLU(Module):
    """x where it is positive, weight * x elsewhere; one weight, or one for each channel (axis 1)."""

    def __init__(self, num_parameters=1, init=0.25, *, placement=None, sbp=None, device=None, dtype=None):
        super().__init__()
        self.num_parameters, self.init = num_parameters, init
        self.weight = Where(placement, sbp, device, dtype).parameter("weight", num_parameters)
        self.reset_parameters()

    def reset_parameters(self):
        """Sets the weights to init."""
        init.constant_(self.weight, self.init)

    def forward(self, x):
        return F.prelu(x, self.weight)

    def extra_repr(self):
        return f"num_parameters={self.num_parameters}"
