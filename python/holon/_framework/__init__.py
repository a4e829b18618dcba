"""What programs import from oneflow.framework: the classes Tensor, dtype and Size."""

from .. import _C
from .._C import Size, Tensor, dtype

__all__ = ["Size", "Tensor", "dtype", "tensor"]

tensor = _C.tensor
