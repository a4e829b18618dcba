"""OneFlow's settings of its collectives. All are accepted; what they ask for is chosen by the planner of boxing and by
nn.Graph, which sum gradients in buckets (config.set_bucket_bytes) and merge moves automatically."""


def _accepted(name, kind, default=None):
    def setting(value=default):
        if not isinstance(value, kind):
            raise TypeError(f"boxing.nccl.{name}: takes {kind.__name__}, got {type(value).__name__}.")

    setting.__name__ = setting.__qualname__ = name
    setting.__doc__ = "Accepted; has no effect."
    return setting


_SWITCHES = (
    "allow_fuse_all_gather",
    "allow_fuse_all_reduce",
    "allow_fuse_broadcast",
    "allow_fuse_mixed_ops",
    "allow_fuse_reduce",
    "allow_fuse_reduce_scatter",
    "enable_all_to_all",
    "enable_use_buffer_to_fuse_all_reduce",
    "enable_use_compute_stream",
    "disable_group_boxing_by_dst_parallel",
)
_NUMBERS = ("set_fusion_max_ops_num", "set_fusion_threshold_mbytes", "set_stream_num")

globals().update({name: _accepted(name, bool, True) for name in _SWITCHES})
globals().update({name: _accepted(name, int) for name in _NUMBERS})

__all__ = [*_SWITCHES, *_NUMBERS]


def __getattr__(name):
    from holon._missing import error

    raise error("boxing.nccl", name, __all__)
