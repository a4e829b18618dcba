"""OneFlow's settings of cuDNN, besides those of holon.backends.cudnn: convolutions and norms choose their kernels by
themselves."""

__all__ = ["enable_conv_heuristic_search_algo", "enable_fused_normalization_add_relu", "set_reserved_mem_mbytes"]


def enable_conv_heuristic_search_algo(val):
    """Accepted; has no effect."""


def enable_fused_normalization_add_relu(val):
    """Accepted; has no effect."""


def set_reserved_mem_mbytes(val):
    """Accepted; has no effect."""
