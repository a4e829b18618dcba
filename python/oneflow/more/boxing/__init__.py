"""OneFlow's names in flow.boxing, besides those of holon.boxing."""

from . import nccl

__all__ = ["enable_fusion", "nccl"]


def enable_fusion(flag=True):
    """Accepted, as all of boxing.nccl; has no effect."""
