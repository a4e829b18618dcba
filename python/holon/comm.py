"""What ranks say to each other outside of tensors."""
from ._C import barrier

__all__ = ["barrier"]
