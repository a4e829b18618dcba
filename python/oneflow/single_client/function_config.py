"""function_config: what holds for one job function."""

import copy

from holon import _C

from . import scope

# Accepted because programs set them: Holon's compiler decides these itself.
_ACCEPTED = {
    "allow_cpu_return_op",
    "concurrency_width",
    "cudnn_buf_limit_mbyte",
    "disable_all_reduce_sequence",
    "enable_all_reduce_group",
    "enable_auto_mixed_precision",
    "enable_cudnn",
    "enable_cudnn_fused_normalization_add_relu",
    "enable_float_compute_for_half_gemm",
    "enable_fuse_add_to_output",
    "enable_fuse_cast_scale",
    "enable_fuse_model_update_ops",
    "enable_gradients_stats_aggregation",
    "enable_inplace",
    "enable_keep_header_only",
    "enable_nccl",
    "enable_non_distributed_optimizer",
    "enable_quantization_aware_training",
    "enable_qat",
    "enable_reuse_mem",
    "enable_reused_mem",
    "enable_ssp_variable_proxy",
    "enable_true_half_config_when_conv",
    "enable_user_op",
    "exp_run_conf",
    "indexed_slices_optimizer_conf",
    "non_distributed_optimizer_group_size_mbyte",
    "optimizer_placement_optimization_mode",
    "optimizer_placement_optimization_threshold",
    "prune_cast_to_static_shape_ops",
    "prune_parallel_cast_ops",
    "static_mem_alloc_algo_white_list",
    "static_mem_alloc_policy_white_list",
    "use_boxing_v2",
    "use_memory_allocation_algorithm_v2",
    "use_nccl_inter_node_communication",
    "use_tensorrt",
    "use_xla_jit",
}
_GROUPS = {
    "tensorrt": {"use_fp16", "use_int8", "int8_calibration"},
    "qat": {"symmetric", "per_channel_weight_quantization", "moving_min_max_momentum"},
    "static_mem_alloc_policy_white_list": {"add"},
}


class _Group:
    def __init__(self, name):
        self._name = name

    def __getattr__(self, name):
        if name.startswith("_") or name not in _GROUPS[self._name]:
            raise AttributeError(
                f"function_config.{self._name} has no '{name}'. It has {', '.join(sorted(_GROUPS[self._name]))}."
            )
        return lambda *_, **__: None


class _Train:
    """The optimizer as versions before 0.2 set it: config.train.primary_lr(0.1),
    config.train.model_update_conf(dict(naive_conf={}))."""

    _NAMES = (
        "primary_lr",
        "secondary_lr",
        "weight_l1",
        "bias_l1",
        "weight_l2",
        "bias_l2",
        "loss_scale_factor",
        "model_update_conf",
        "loss_lbn",
        "loss_lbns",
        "train_step_lbn",
        "primary_lr_lbn",
        "secondary_lr_lbn",
        "dynamic_loss_scale_policy",
        "num_gradient_accumulation_steps",
    )

    def __init__(self):
        self.values = {}

    def __getattr__(self, name):
        if name not in self._NAMES:
            raise AttributeError(f"function_config.train has no '{name}'. It has {', '.join(self._NAMES)}.")
        return lambda value=None: self.values.__setitem__(name, value)


class FunctionConfig:
    """Settings of a job function: config = function_config(); config.default_data_type(flow.float)."""

    def __init__(self):
        self.data_type, self.scope, self.initializer = _C.parse_dtype("float32"), scope.Scope(), None
        self.train = _Train()

    def default_data_type(self, dtype):
        """The default dtype of variables."""
        self.data_type = _C.parse_dtype(dtype)

    def default_logical_view(self, view):
        """scope.mirrored_view() or scope.consistent_view()."""
        if isinstance(view, type):
            view = view()
        if not isinstance(view, (scope.mirrored_view, scope.consistent_view)):
            raise TypeError(
                "default_logical_view: takes scope.mirrored_view() or scope.consistent_view(), "
                f"got {type(view).__name__}."
            )
        self.scope = view._change(self.scope)

    default_distribute_strategy = default_logical_view

    def default_placement_scope(self, placement):
        """scope.placement(...) of the ops that are in no other."""
        if not isinstance(placement, scope.placement):
            raise TypeError(
                f"default_placement_scope: takes scope.placement(device, ids), got {type(placement).__name__}."
            )
        self.scope = placement._change(self.scope)

    def default_initializer_conf(self, conf):
        """The initializer of variables that have none: an initializer, or a dict as {"constant_conf": {"value": 0}}."""
        self.initializer = _from_conf(conf) if isinstance(conf, dict) else conf

    def copy(self):
        return copy.deepcopy(self)

    def __getattr__(self, name):
        if name in _ACCEPTED or name.startswith(("all_reduce_", "cudnn_conv_")):
            return lambda *_, **__: None
        if name in _GROUPS:
            return _Group(name)
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(
            f"function_config has no '{name}'. It has default_data_type, default_logical_view, "
            f"default_placement_scope, default_initializer_conf, train, and accepts {', '.join(sorted(_ACCEPTED))}."
        )


def _from_conf(conf):
    from . import initializers as i

    makers = {
        "constant_conf": lambda value=0, **_: i.constant_initializer(value),
        "constant_int_conf": lambda value=0, **_: i.constant_initializer(value),
        "random_uniform_conf": lambda min=0.0, max=1.0, **_: i.random_uniform_initializer(min, max),
        "random_normal_conf": lambda mean=0.0, std=1.0, **_: i.random_normal_initializer(mean, std),
        "truncated_normal_conf": lambda mean=0.0, std=1.0, **_: i.truncated_normal_initializer(mean, std),
    }
    if len(conf) != 1 or next(iter(conf)) not in makers:
        raise ValueError(f"default_initializer_conf: {conf} must have one of the keys {', '.join(makers)}.")
    kind, values = next(iter(conf.items()))
    return makers[kind](**values)
