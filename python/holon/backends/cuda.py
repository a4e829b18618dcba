"""Settings of the CUDA backend."""

from .. import _C

__all__ = ["matmul"]


class _Matmul:
    @property
    def allow_tf32(self):
        """Whether float32 products may round their factors to TF32 (10 bits of mantissa);
        at first what HOLON_TF32 says."""
        return _C.tf32_products()

    @allow_tf32.setter
    def allow_tf32(self, on):
        _C.set_tf32_products(bool(on))


matmul = _Matmul()
