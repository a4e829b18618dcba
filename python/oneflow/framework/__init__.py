"""What programs import from oneflow.framework: the classes Tensor, dtype and Size."""

from holon import _C
from holon._C import Size, Tensor, dtype

__all__ = ["Size", "Tensor", "dtype", "tensor"]

tensor = _C.tensor
