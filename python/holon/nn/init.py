"""Initial values, in place, on local and global tensors. The values depend on the seed and the global shape, never on the
layout. Every function returns its tensor."""
import math

from .. import _C
from ..autograd import no_grad


@no_grad()
def uniform_(tensor, a=0.0, b=1.0):
    """Draws evenly from [a, b)."""
    return tensor.uniform_(a, b)


@no_grad()
def normal_(tensor, mean=0.0, std=1.0):
    """Draws from the normal distribution."""
    return tensor.normal_(mean, std)


@no_grad()
def trunc_normal_(tensor, mean=0.0, std=1.0, a=-2.0, b=2.0):
    """Draws from the part of the normal distribution that lies in [a, b]."""
    return tensor.trunc_normal_(mean, std, a, b)


@no_grad()
def constant_(tensor, val):
    return tensor.fill_(val)


@no_grad()
def zeros_(tensor):
    return tensor.fill_(0)


@no_grad()
def ones_(tensor):
    return tensor.fill_(1)


def fans(tensor):
    """Returns (fan_in, fan_out) of a weight [out, in, window...]."""
    shape = tuple(tensor.shape)
    if len(shape) < 2:
        raise ValueError(f"a weight {list(shape)} has no fan in and fan out: it needs two axes or more.")
    window = math.prod(shape[2:])
    return shape[1] * window, shape[0] * window


def calculate_gain(nonlinearity, param=None):
    """Returns the factor by which a weight's std makes up for what follows it."""
    if nonlinearity in ("linear", "conv1d", "conv2d", "conv3d", "sigmoid"):
        return 1.0
    if nonlinearity == "tanh":
        return 5 / 3
    if nonlinearity == "relu":
        return math.sqrt(2)
    if nonlinearity == "leaky_relu":
        return math.sqrt(2 / (1 + (0.01 if param is None else param) ** 2))
    raise ValueError(f"calculate_gain: {nonlinearity!r} is not known; there are linear, conv*d, sigmoid, tanh, relu, leaky_relu.")


def xavier_uniform_(tensor, gain=1.0):
    bound = gain * math.sqrt(6 / sum(fans(tensor)))
    return uniform_(tensor, -bound, bound)


def xavier_normal_(tensor, gain=1.0):
    return normal_(tensor, 0.0, gain * math.sqrt(2 / sum(fans(tensor))))


def _kaiming_std(tensor, a, mode, nonlinearity):
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"mode is {mode!r}; it must be 'fan_in' or 'fan_out'.")
    return calculate_gain(nonlinearity, a) / math.sqrt(fans(tensor)[mode == "fan_out"])


def kaiming_uniform_(tensor, a=0.0, mode="fan_in", nonlinearity="leaky_relu"):
    bound = math.sqrt(3) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound)


def kaiming_normal_(tensor, a=0.0, mode="fan_in", nonlinearity="leaky_relu"):
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity))
