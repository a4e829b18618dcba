"""Dropout: in training, zeros at random; of elements or of whole channels."""

from . import functional as F
from .options import FunctionModule


class Dropout(FunctionModule):
    """In training, sets elements to zero with probability p and scales the others by 1 / (1 - p)."""

    _function, _options = "dropout", {"p": 0.5, "inplace": False}

    def __init__(self, p=0.5, inplace=False):
        super().__init__(p, inplace)
        if not 0 <= p <= 1:
            raise ValueError(f"{type(self).__name__}: p is {p}; it must be between 0 and 1.")

    def forward(self, x):
        return getattr(F, self._function)(x, self.p, self.training, self.inplace)

    def extra_repr(self):
        return f"p={self.p}, inplace={self.inplace}"


class Dropout1d(Dropout):
    """Dropout of whole channels of [n, c, l] or [c, l]."""

    _function = "dropout1d"


class Dropout2d(Dropout):
    """Dropout of whole channels of [n, c, h, w] or [c, h, w]."""

    _function = "dropout2d"


class Dropout3d(Dropout):
    """Dropout of whole channels of [n, c, d, h, w] or [c, d, h, w]."""

    _function = "dropout3d"


class AlphaDropout(Dropout):
    """Dropout for networks of SELU: with probability p the value of SELU far below 0, then scaled and moved so that
    mean 0 and variance 1 stay."""

    _function = "alpha_dropout"


class FeatureAlphaDropout(Dropout):
    """AlphaDropout of whole channels of [n, c, ...]."""

    _function = "feature_alpha_dropout"
