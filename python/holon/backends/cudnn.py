"""cuDNN's settings. All are accepted and have no effect: convolutions and norms choose their kernels by themselves."""

# Programs set these.
enabled = True
benchmark = False
deterministic = True


def enable_conv_heuristic_search_algo(val):
    """Accepted; has no effect."""


def enable_fused_normalization_add_relu(val):
    """Accepted; has no effect."""


def set_reserved_mem_mbytes(val):
    """Accepted; has no effect."""


def is_available():
    return False
