"""What programs import from oneflow.framework.tensor."""

from holon._C import Tensor, tensor

__all__ = ["Tensor", "tensor"]
