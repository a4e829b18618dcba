"""Initial values, in place, on local and global tensors.
The values depend on the seed and the global shape, never on the layout. Every function returns its tensor."""

import math

from .. import _C
from ..autograd import no_grad

_ops = _C.ops


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
    """Draws from the normal distribution truncated to [a, b]."""
    return tensor.trunc_normal_(mean, std, a, b)


@no_grad()
def constant_(tensor, val):
    """Sets every element to val."""
    return tensor.fill_(val)


def zeros_(tensor):
    """Sets every element to 0."""
    return constant_(tensor, 0)


def ones_(tensor):
    """Sets every element to 1."""
    return constant_(tensor, 1)


def _beside(tensor, broadcast=True):
    """Where a new tensor is to be, to be written into this one."""
    if not tensor.is_global:
        return {"dtype": tensor.dtype, "device": tensor.device}
    sbp = [_C.sbp.broadcast] * len(tensor.sbp) if broadcast else tensor.sbp
    return {"dtype": tensor.dtype, "placement": tensor.placement, "sbp": sbp}


def _copy_(tensor, value):
    return tensor.copy_(value.to_global(tensor.placement, tensor.sbp) if tensor.is_global else value)


def _need_2d(tensor, name):
    if tensor.ndim != 2:
        raise ValueError(f"{name}: the tensor must be [rows, columns]; found {list(tensor.shape)}.")


@no_grad()
def eye_(tensor):
    """Ones on the diagonal of a matrix, zeros elsewhere."""
    _need_2d(tensor, "eye_")
    return _copy_(tensor, _ops["eye"](*tensor.shape, **_beside(tensor, broadcast=False)))


@no_grad()
def dirac_(tensor, groups=1):
    """Makes the weight [out, in, window...] of a convolution (in groups) hand its channels through,
    as far as there are out."""
    if not 3 <= tensor.ndim <= 5:
        raise ValueError(
            f"dirac_: the tensor must be [out, in, window...] with 3 to 5 axes; found {list(tensor.shape)}."
        )
    out, inner, *window = tensor.shape
    if groups < 1 or out % groups:
        raise ValueError(f"dirac_: {groups} groups do not divide {out} channels.")
    where = _beside(tensor)
    channels = _ops["cat"]([_ops["eye"](out // groups, inner, **where)] * groups)
    index = {k: v for k, v in where.items() if k != "dtype"}
    centre = sum(size // 2 * math.prod(window[i + 1 :]) for i, size in enumerate(window))
    at = (_ops["arange"](math.prod(window), **index) == centre).to(tensor.dtype)
    return _copy_(tensor, (channels.unsqueeze(-1) * at).reshape(tensor.shape))


@no_grad()
def orthogonal_(tensor, gain=1.0):
    """A matrix (the axes behind the first taken as one) whose rows or columns, the fewer of them, are orthonormal,
    times gain."""
    if tensor.ndim < 2:
        raise ValueError(f"orthogonal_: the tensor must have two axes or more; found {list(tensor.shape)}.")
    if tensor.numel() == 0:
        return tensor
    rows = tensor.shape[0]
    drawn = normal_(_ops["empty"](rows, tensor.numel() // rows, **_beside(tensor)))
    return _copy_(tensor, (_ops["orthonormalize"](drawn) * gain).reshape(tensor.shape))


@no_grad()
def sparse_(tensor, sparsity, std=0.01):
    """A matrix of normal draws, with the share sparsity of each column, at random, set to 0."""
    _need_2d(tensor, "sparse_")
    if not 0 <= sparsity <= 1:
        raise ValueError(f"sparse_: sparsity is {sparsity}; it must be between 0 and 1.")
    normal_(tensor, 0.0, std)
    zeros = math.ceil(sparsity * tensor.shape[0])
    if zeros == 0 or tensor.numel() == 0:
        return tensor
    drawn = uniform_(_ops["empty"](*tensor.shape, **{**_beside(tensor), "dtype": _C.float64}))
    kept = (drawn > _ops["kthvalue"](drawn, zeros, 0, True)[0]).to(tensor.dtype)
    return tensor.mul_(kept.to_global(tensor.placement, tensor.sbp) if tensor.is_global else kept)


def fans(tensor):
    """Returns (fan_in, fan_out) of a weight [out, in, window...]."""
    shape = tuple(tensor.shape)
    if len(shape) < 2:
        raise ValueError(f"a weight {list(shape)} has no fan in and fan out: it needs two axes or more.")
    window = math.prod(shape[2:])
    return shape[1] * window, shape[0] * window


_GAINS = {"sigmoid": 1.0, "tanh": 5 / 3, "relu": math.sqrt(2), "selu": 3 / 4, "linear": 1.0}
_GAINS.update({f"conv{transpose}{n}d": 1.0 for transpose in ("", "_transpose") for n in (1, 2, 3)})


_calculate_fan_in_and_fan_out = fans


def calculate_gain(nonlinearity, param=None):
    """Returns the factor by which a weight's std makes up for what follows it."""
    if nonlinearity == "leaky_relu":
        return math.sqrt(2 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in _GAINS:
        raise ValueError(
            f"calculate_gain: {nonlinearity!r} is not known; there are {', '.join(_GAINS)} and leaky_relu."
        )
    return _GAINS[nonlinearity]


def _inverse_root(n):
    # A weight without inputs has no elements: any factor will do.
    return 1 / math.sqrt(n) if n else 0.0


def xavier_uniform_(tensor, gain=1.0):
    """Draws evenly, with the variance 2 gain**2 / (fan_in + fan_out)."""
    bound = gain * math.sqrt(6) * _inverse_root(sum(fans(tensor)))
    return uniform_(tensor, -bound, bound)


def xavier_normal_(tensor, gain=1.0):
    """Draws from the normal distribution with the variance 2 gain**2 / (fan_in + fan_out)."""
    return normal_(tensor, 0.0, gain * math.sqrt(2) * _inverse_root(sum(fans(tensor))))


def _kaiming_std(tensor, a, mode, nonlinearity):
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"mode is {mode!r}; it must be 'fan_in' or 'fan_out'.")
    return calculate_gain(nonlinearity, a) * _inverse_root(fans(tensor)[mode == "fan_out"])


def kaiming_uniform_(tensor, a=0.0, mode="fan_in", nonlinearity="leaky_relu"):
    """Draws evenly, with the variance gain**2 / fan, gain being that of the nonlinearity (of slope a)."""
    bound = math.sqrt(3) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound)


def kaiming_normal_(tensor, a=0.0, mode="fan_in", nonlinearity="leaky_relu"):
    """Draws from the normal distribution with the variance gain**2 / fan, likewise."""
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity))


def __getattr__(name):
    from .._missing import error

    raise error("nn.init", name, [n for n in globals() if n[0] != "_"])
