"""Images: other resolutions, and windows as columns."""

from .options import REQUIRED, FunctionModule


class PixelShuffle(FunctionModule):
    """[n, c * r * r, h, w] to [n, c, h * r, w * r], r being upscale_factor."""

    _function, _options = "pixel_shuffle", {"upscale_factor": REQUIRED}


class PixelUnshuffle(FunctionModule):
    """[n, c, h * r, w * r] to [n, c * r * r, h, w], r being downscale_factor."""

    _function, _options = "pixel_unshuffle", {"downscale_factor": REQUIRED}


class Upsample(FunctionModule):
    """Another resolution, by size or scale_factor; mode: "nearest", "linear", "bilinear", "bicubic" or "trilinear"."""

    _function = "interpolate"
    _options = {"size": None, "scale_factor": None, "mode": "nearest", "align_corners": None}

    def extra_repr(self):
        which = "size" if self.scale_factor is None else "scale_factor"
        return f"{which}={getattr(self, which)!r}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """Upsample of images by the nearest pixel."""

    def __init__(self, size=None, scale_factor=None):
        super().__init__(size, scale_factor, "nearest")


class UpsamplingBilinear2d(Upsample):
    """Upsample of images between pixels, corners on corners."""

    def __init__(self, size=None, scale_factor=None):
        super().__init__(size, scale_factor, "bilinear", True)


class Unfold(FunctionModule):
    """The windows of [n, c, h, w] as columns [n, c * kh * kw, windows]."""

    _function, _options = "unfold", {"kernel_size": REQUIRED, "dilation": 1, "padding": 0, "stride": 1}


class Fold(FunctionModule):
    """Adds up columns [n, c * kh * kw, windows], each in its window of [n, c, *output_size]."""

    _function = "fold"
    _options = {"output_size": REQUIRED, "kernel_size": REQUIRED, "dilation": 1, "padding": 0, "stride": 1}
