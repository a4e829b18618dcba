"""Initializers of variables. Values follow the seed, the variable's name and its whole shape: not how it is
distributed, how many devices there are, nor in which order variables are made."""

import math
import zlib

from holon import _C
from holon.autograd import no_grad

__all__ = [
    "constant_initializer",
    "glorot_normal_initializer",
    "glorot_uniform_initializer",
    "kaiming_initializer",
    "ones_initializer",
    "random_normal_initializer",
    "random_uniform_initializer",
    "truncated_normal",
    "truncated_normal_initializer",
    "variance_scaling_initializer",
    "xavier_normal_initializer",
    "xavier_uniform_initializer",
    "zeros_initializer",
]

# The standard deviation of a standard normal distribution cut at 2.
_CUT_AT_2 = 0.87962566103423978


class Initializer:
    """fill(tensor, name) writes a variable's first values. _draw does so for a shape's worth of numbers."""

    seed = None

    @no_grad()
    def fill(self, tensor, name, seed=None):
        """Fills a local or global tensor in place and returns it.
        seed: get_variable's; else the initializer's own, else holon.initial_seed()."""
        source = next(s for s in (seed, self.seed, _C.initial_seed()) if s is not None)
        # 63 bits of which the name decides the upper ones, so that variables differ also where all have one seed.
        mixed = (zlib.crc32(name.encode()) << 31 ^ (int(source) * 0x9E3779B97F4A7C15 >> 7)) & (1 << 63) - 1
        if tensor.dtype.is_floating_point:
            self._draw(tensor, mixed)
        else:
            wide = _C.ops["zeros_like"](tensor, dtype=_C.float64)
            self._draw(wide, mixed)
            tensor.copy_(_C.ops["floor"](wide).to(tensor.dtype))
        return tensor

    def __call__(self, shape, dtype=None, seed=None, name=""):
        """A new local tensor of such values."""
        return self.fill(_C.ops["empty"](list(shape), dtype=dtype or _C.float32), name, seed)

    def __repr__(self):
        options = ", ".join(f"{k}={v!r}" for k, v in vars(self).items())
        return f"{type(self).__name__}({options})"

    def _draw(self, tensor, seed):
        raise NotImplementedError


def _number(value, what):
    if not isinstance(value, (int, float)):
        raise TypeError(f"{what} is {value!r}; it must be a number.")
    return value


class constant_initializer(Initializer):
    """value everywhere. dtype is accepted: the variable's counts."""

    def __init__(self, value=0, dtype=None):
        self.value = _number(value, "constant_initializer: value")

    def _draw(self, tensor, seed):
        tensor.fill_(self.value)


def zeros_initializer(dtype=None):
    """0 everywhere."""
    return constant_initializer(0)


def ones_initializer(dtype=None):
    """1 everywhere."""
    return constant_initializer(1)


class random_uniform_initializer(Initializer):
    """Evenly from [minval, maxval); whole numbers for an integer variable."""

    def __init__(self, minval=0, maxval=1, dtype=None):
        self.minval, self.maxval = (
            _number(v, f"random_uniform_initializer: {w}") for v, w in ((minval, "minval"), (maxval, "maxval"))
        )
        if minval > maxval:
            raise ValueError(f"random_uniform_initializer: minval {minval} is more than maxval {maxval}.")

    def _draw(self, tensor, seed):
        tensor.uniform_(self.minval, self.maxval, seed=seed)


class random_normal_initializer(Initializer):
    """The normal distribution."""

    def __init__(self, mean=0.0, stddev=1.0, seed=None, dtype=None):
        self.mean, self.stddev, self.seed = (
            _number(mean, "random_normal_initializer: mean"),
            _spread(stddev, "random_normal_initializer"),
            seed,
        )

    def _draw(self, tensor, seed):
        tensor.normal_(self.mean, self.stddev, seed=seed)


class truncated_normal_initializer(Initializer):
    """The normal distribution, drawn again beyond 2 stddev of the mean."""

    def __init__(self, mean=0.0, stddev=1.0):
        self.mean, self.stddev = (
            _number(mean, "truncated_normal_initializer: mean"),
            _spread(stddev, "truncated_normal_initializer"),
        )

    def _draw(self, tensor, seed):
        tensor.trunc_normal_(
            self.mean, self.stddev, self.mean - 2 * self.stddev, self.mean + 2 * self.stddev, seed=seed
        )


def truncated_normal(stddev=1.0):
    """The normal distribution around 0, drawn again beyond 2 stddev."""
    return truncated_normal_initializer(0.0, stddev)


def _spread(stddev, what):
    if _number(stddev, f"{what}: stddev") <= 0:
        raise ValueError(f"{what}: stddev is {stddev}; it must be more than 0.")
    return stddev


# By the fan of the shape

_MODES = ("fan_in", "fan_out", "fan_avg")


def fan(shape, mode, data_format):
    """fan_in: inputs of one output, the product of shape[1:]; fan_out: shape[0] times the positions of the window;
    fan_avg: their mean."""
    shape = [int(n) for n in shape]
    if not shape:
        raise ValueError("a variable without axes has no fan. Give it a shape, or another initializer.")
    last = data_format.upper().endswith("C") and len(data_format) > 2
    fan_in = math.prod(shape[1:])
    fan_out = shape[0] * math.prod(shape[1:-1] if last else shape[2:])
    return {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[mode]


def _one_of(value, values, what):
    if value not in values:
        raise ValueError(f"{what} is {value!r}; it must be one of {', '.join(map(repr, values))}.")
    return value


def _text(data_format, what):
    if data_format is not None and not isinstance(data_format, str):
        raise TypeError(f"{what}: data_format is {data_format!r}; it must be text such as 'NCHW'.")
    return data_format or ""


def _fill_by_variance(tensor, variance, distribution, seed):
    if distribution == "random_uniform":
        limit = math.sqrt(3 * variance)
        tensor.uniform_(-limit, limit, seed=seed)
    elif distribution == "random_normal":
        tensor.normal_(0.0, math.sqrt(variance), seed=seed)
    else:
        stddev = math.sqrt(variance) / _CUT_AT_2
        tensor.trunc_normal_(0.0, stddev, -2 * stddev, 2 * stddev, seed=seed)


class variance_scaling_initializer(Initializer):
    """Mean 0 and variance scale / fan, where the fan is that of mode.
    distribution: truncated_normal, random_normal or random_uniform."""

    def __init__(self, scale=1.0, mode="fan_in", distribution="truncated_normal", data_format=""):
        what = "variance_scaling_initializer"
        if _number(scale, f"{what}: scale") <= 0:
            raise ValueError(f"{what}: scale is {scale}; it must be more than 0.")
        self.scale, self.mode = scale, _one_of(mode.lower() if isinstance(mode, str) else mode, _MODES, f"{what}: mode")
        self.distribution = _one_of(
            distribution, ("truncated_normal", "random_normal", "random_uniform"), f"{what}: distribution"
        )
        self.data_format = _text(data_format, what)

    def _draw(self, tensor, seed):
        _fill_by_variance(
            tensor, self.scale / max(1, fan(tensor.shape, self.mode, self.data_format)), self.distribution, seed
        )


def glorot_uniform_initializer(data_format=""):
    """Evenly, with variance 1 over the mean of fan_in and fan_out."""
    return variance_scaling_initializer(1.0, "fan_avg", "random_uniform", data_format)


def glorot_normal_initializer(data_format=""):
    """Normal, with variance 1 over the mean of fan_in and fan_out."""
    return variance_scaling_initializer(1.0, "fan_avg", "random_normal", data_format)


xavier_uniform_initializer, xavier_normal_initializer = glorot_uniform_initializer, glorot_normal_initializer


class kaiming_initializer(Initializer):
    """Mean 0 and standard deviation gain / sqrt(fan): the gain makes up for the nonlinearity that follows.
    shape: the variable's."""

    def __init__(
        self,
        shape,
        distribution="random_normal",
        mode="fan_in",
        nonlinearity="leaky_relu",
        negative_slope=0.0,
        data_format="NCHW",
    ):
        what = "kaiming_initializer"
        self.distribution = _one_of(distribution, ("random_normal", "random_uniform"), f"{what}: distribution")
        self.mode, self.data_format = _one_of(mode, _MODES, f"{what}: mode"), _text(data_format, what)
        if shape is not None and not isinstance(shape, (tuple, list)):
            raise TypeError(f"{what}: shape is {shape!r}; it must be a tuple or a list.")
        gains = {
            None: 1.0,
            "none": 1.0,
            "linear": 1.0,
            "sigmoid": 1.0,
            "tanh": 5 / 3,
            "relu": math.sqrt(2),
            "leaky_relu": math.sqrt(2 / (1 + negative_slope**2)),
        }
        self.shape = shape and tuple(shape)
        self.gain = gains[_one_of(nonlinearity, tuple(gains), f"{what}: nonlinearity")]

    def _draw(self, tensor, seed):
        variance = self.gain**2 / max(1, fan(self.shape or tensor.shape, self.mode, self.data_format))
        _fill_by_variance(tensor, variance, self.distribution, seed)


def from_dict(conf):
    """The initializer that function_config.default_initializer_conf describes, as dict(constant_conf=dict(value=0))."""
    kinds = {
        "constant_conf": constant_initializer,
        "constant_int_conf": constant_initializer,
        "random_uniform_conf": lambda min=0, max=1: random_uniform_initializer(min, max),
        "random_uniform_int_conf": lambda min=0, max=1: random_uniform_initializer(min, max),
        "random_normal_conf": lambda mean=0.0, std=1.0: random_normal_initializer(mean, std),
        "truncated_normal_conf": lambda mean=0.0, std=1.0: truncated_normal_initializer(mean, std),
    }
    if isinstance(conf, Initializer):
        return conf
    if not isinstance(conf, dict) or len(conf) != 1 or next(iter(conf)) not in kinds:
        raise ValueError(
            f"default_initializer_conf: {conf!r} is not a dict with one of {', '.join(kinds)}. "
            "Example: dict(constant_conf=dict(value=0))."
        )
    ((kind, options),) = conf.items()
    try:
        return kinds[kind](**options)
    except TypeError as error:
        raise ValueError(f"default_initializer_conf: {kind} has no options {options!r}: {error}.") from None
