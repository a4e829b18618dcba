"""Pools: one number for each window of an image, a signal or a volume."""

from . import functional as F
from .options import REQUIRED, FunctionModule


class _Pool(FunctionModule):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self.stride is None:
            self.stride = self.kernel_size


class _MaxPool(_Pool):
    _options = {
        "kernel_size": REQUIRED,
        "stride": None,
        "padding": 0,
        "dilation": 1,
        "return_indices": False,
        "ceil_mode": False,
    }
    _shown = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")


class MaxPool1d(_MaxPool):
    """The largest element of each window of [n, c, l]."""

    _function = "max_pool1d"


class MaxPool2d(_MaxPool):
    """The largest element of each window of [n, c, h, w]."""

    _function = "max_pool2d"


class MaxPool3d(_MaxPool):
    """The largest element of each window of [n, c, d, h, w]."""

    _function = "max_pool3d"


class _MaxUnpool(_Pool):
    _options = {"kernel_size": REQUIRED, "stride": None, "padding": 0}

    def forward(self, x, indices, output_size=None):
        return getattr(F, self._function)(x, indices, self.kernel_size, self.stride, self.padding, output_size)


class MaxUnpool1d(_MaxUnpool):
    """Zeros with x [n, c, l] at the places that MaxPool1d(return_indices=True) gave."""

    _function = "max_unpool1d"


class MaxUnpool2d(_MaxUnpool):
    """Zeros with x [n, c, h, w] at the places that MaxPool2d(return_indices=True) gave."""

    _function = "max_unpool2d"


class MaxUnpool3d(_MaxUnpool):
    """Zeros with x [n, c, d, h, w] at the places that MaxPool3d(return_indices=True) gave."""

    _function = "max_unpool3d"


class AvgPool1d(_Pool):
    """The mean of each window of [n, c, l]."""

    _function = "avg_pool1d"
    _options = {"kernel_size": REQUIRED, "stride": None, "padding": 0, "ceil_mode": False, "count_include_pad": True}
    _shown = ("kernel_size", "stride", "padding")


class AvgPool2d(_Pool):
    """The mean of each window of [n, c, h, w]; divisor_override: divides by it in place of the window's size."""

    _function = "avg_pool2d"
    _options = {**AvgPool1d._options, "divisor_override": None}
    _shown = AvgPool1d._shown


class AvgPool3d(AvgPool2d):
    """The mean of each window of [n, c, d, h, w]."""

    _function = "avg_pool3d"


class _AdaptivePool(FunctionModule):
    _options = {"output_size": REQUIRED}


class AdaptiveAvgPool1d(_AdaptivePool):
    """Means of windows of [n, c, l] that give output_size numbers."""

    _function = "adaptive_avg_pool1d"


class AdaptiveAvgPool2d(_AdaptivePool):
    """Means of windows of [n, c, h, w] that give an image of output_size; None keeps a size."""

    _function = "adaptive_avg_pool2d"


class AdaptiveAvgPool3d(_AdaptivePool):
    """Means of windows of [n, c, d, h, w] that give a volume of output_size; None keeps a size."""

    _function = "adaptive_avg_pool3d"


class _AdaptiveMaxPool(FunctionModule):
    _options = {"output_size": REQUIRED, "return_indices": False}
    _shown = ("output_size",)


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """The largest elements of windows of [n, c, l] that give output_size numbers."""

    _function = "adaptive_max_pool1d"


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """The largest elements of windows of [n, c, h, w] that give an image of output_size; None keeps a size."""

    _function = "adaptive_max_pool2d"


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """The largest elements of windows of [n, c, d, h, w] that give a volume of output_size; None keeps a size."""

    _function = "adaptive_max_pool3d"
