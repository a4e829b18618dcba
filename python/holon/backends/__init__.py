"""Settings of the libraries beneath."""
from . import cudnn

__all__ = ["cudnn"]
