"""What programs import from oneflow.framework.dtype."""

from holon._C import dtype

__all__ = ["dtype"]
