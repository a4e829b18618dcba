"""GraphConfig: the settings of a graph under the names that OneFlow has for them."""

from holon.nn import graph as core


class GraphConfig(core.GraphConfig):
    """Holon's, with OneFlow's other names."""

    def enable_zero(self, mode=True, *, stage=1, shard_min_size=None, shard_restore_level=None):
        """As Holon's. shard_restore_level has no effect: parameters are gathered where they are read."""
        super().enable_zero(mode, stage=stage, shard_min_size=shard_min_size)

    def set_zero_redundancy_optimizer_mode(self, mode):
        """The older name: "distributed_split" is enable_zero(stage=1)."""
        if mode not in ("distributed_split", "non_distributed"):
            raise ValueError(
                f"config.set_zero_redundancy_optimizer_mode: {mode!r}; it is 'distributed_split' or 'non_distributed'."
            )
        self.enable_zero(mode == "distributed_split", stage=1)

    def allow_fuse_add_to_output(self, mode=True):
        """Whether element-wise ops, sums among them, are fused; on from the start."""
        self._switch("fuse_elementwise", mode)

    def allow_fuse_cast_scale(self, mode=True):
        """Whether casts and scalings are fused with what is around them: as allow_fuse_add_to_output."""
        self._switch("fuse_elementwise", mode)

    def allow_fuse_model_update_ops(self, mode=True):
        """Does nothing: an optimizer's group is always updated in one go."""

    def set_outputs_buffer_size(self, value=2):
        """Does nothing: a call returns when its outputs are there, so that there is one of each."""

    def enable_cudnn_conv_heuristic_search_algo(self, mode=True):
        """Does nothing: convolutions choose their kernels by themselves."""

    def enable_straighten_algorithm(self, mode="MemoryFirst"):
        """Does nothing: the order of instructions is that of the schedule, and memory is planned for it."""

    def enable_compress_memory(self, mode=True):
        """Does nothing: values whose lifetimes do not meet share memory anyway."""

    def enable_multi_tensor_update(self, mode=True):
        """Does nothing: an optimizer's group is always updated in one go."""

    def enable_fused_model_update_cast(self, mode=True):
        """Does nothing: parameters are cast where they are read."""

    def enable_auto_parallel(self, mode=True):
        """Does nothing: where build() leaves the sbp of a value open, the cheapest is chosen anyway;
        what it says by to_global stays."""

    def enable_auto_parallel_ignore_user_sbp_config(self, mode=True):
        """Not there: what build() says by to_global stays."""
        if mode:
            raise NotImplementedError(
                "config.enable_auto_parallel_ignore_user_sbp_config: the sbps that a program gives are kept. "
                "Leave out the to_global calls whose sbp is to be chosen."
            )

    def set_auto_parallel_computation_cost_ratio(self, ratio):
        """Does nothing: costs are measured (HOLON_MACHINE_COSTS)."""

    def set_auto_parallel_wait_time(self, cost):
        """Does nothing: as set_auto_parallel_computation_cost_ratio."""

    def enable_auto_parallel_trunk_algo(self, mode=True):
        """Does nothing: as enable_auto_parallel."""

    enable_auto_parallel_mainstem_algo = enable_auto_parallel_prune_parallel_cast_ops = enable_auto_parallel_trunk_algo

    def enable_auto_parallel_sbp_collector(self, mode=True):
        """Does nothing: as enable_auto_parallel."""
