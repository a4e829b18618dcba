"""As holon.distributed."""

from holon.distributed import *  # noqa: F401
