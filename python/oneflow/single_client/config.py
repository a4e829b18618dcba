"""Settings of the session, made before its first job runs: config.gpu_device_num(2)."""

from . import session as _session

_COUNTS = ("cpu_device_num", "gpu_device_num", "machine_num")
# Accepted for the sake of programs that set them.
_ACCEPTED = {
    "collect_act_event",
    "comm_net_worker_num",
    "compute_thread_pool_size",
    "disable_group_boxing_by_dst_parallel",
    "enable_debug_mode",
    "enable_fusion",
    "enable_legacy_model_io",
    "enable_mem_chain_merge",
    "enable_model_io_v2",
    "enable_numa_aware_cuda_malloc_host",
    "enable_tensor_float_32_compute",
    "load_library",
    "load_library_now",
    "max_mdsave_worker_num",
    "nccl_use_compute_stream",
    "numa_aware_cuda_malloc_host",
    "persistence_buf_byte",
    "rdma_mem_block_mbyte",
    "rdma_recv_msg_buf_mbyte",
    "reserved_device_mem_mbyte",
    "reserved_host_mem_mbyte",
    "save_downloaded_file_to_local_fs",
    "thread_enable_local_message_queue",
    "use_rdma",
}
_COLLECTIVE = {
    "enable_fusion",
    "nccl_enable_all_to_all",
    "nccl_enable_mixed_fusion",
    "nccl_fusion_all_gather",
    "nccl_fusion_all_gather_use_buffer",
    "nccl_fusion_all_reduce",
    "nccl_fusion_all_reduce_use_buffer",
    "nccl_fusion_broadcast",
    "nccl_fusion_max_ops",
    "nccl_fusion_reduce",
    "nccl_fusion_reduce_scatter",
    "nccl_fusion_reduce_scatter_use_buffer",
    "nccl_fusion_threshold_mb",
    "nccl_num_streams",
    "num_callback_threads",
}


def _set(name, value):
    current = _session.default()
    if current.is_started:
        print(
            f"config.{name}({value}): the session runs already, so this changes nothing. "
            "Call it before the first job, or after clear_default_session()."
        )
        return False
    current.settings[name] = value
    return True


def _count(name):
    least = 1 if name == "machine_num" else 0

    def setter(value):
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"config.{name}: takes an int, got {type(value).__name__}.")
        if value < least:
            raise ValueError(f"config.{name}: {value} is less than {least}.")
        return _set(name, value)

    setter.__name__ = name
    return setter


gpu_device_num, cpu_device_num, machine_num = map(_count, ("gpu_device_num", "cpu_device_num", "machine_num"))


def enable_legacy_model_io(val=True):
    """Asks for checkpoints by the older means; they are the same here."""
    return _set("enable_legacy_model_io", bool(val))


def legacy_model_io_enabled():
    return _session.default().settings.get("enable_legacy_model_io", False)


class _CollectiveBoxing:
    def __getattr__(self, name):
        return _accept(name, _COLLECTIVE, "config.collective_boxing")


collective_boxing = _CollectiveBoxing()


def _accept(name, names, where):
    if name not in names:
        raise AttributeError(f"{where} has no '{name}'. It has {', '.join(sorted(names))}.")
    return lambda value=True, *_, **__: _set(name, value)


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _accept(name, _ACCEPTED, "config")
