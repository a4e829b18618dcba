"""Settings of the libraries beneath."""

from . import cuda, cudnn

__all__ = ["cuda", "cudnn"]
