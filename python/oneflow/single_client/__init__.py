"""The older interface: job functions in the consistent or the mirrored view.
`import oneflow` finds its names here when they are first used."""

from importlib import import_module

# Modules that are names of holon's: flow.scope.placement(...).
MODULES = (
    "advanced", "checkpoint", "config", "distribute", "image", "layers", "losses", "math", "optimizer", "regularizers",
    "scope", "summary", "train",
)  # fmt: skip
# The module of each of the other names.
NAMES = {
    "CheckPoint": "train",
    "FixedTensorDef": "signature",
    "FunctionConfig": "function_config",
    "MirroredTensorDef": "signature",
    "MirroredTensorListDef": "signature",
    "acc": "streams",
    "assign": "variable",
    "cast_to_current_logical_view": "streams",
    "clear_default_session": "session",
    "consistent_view_enabled": "scope",
    "current_machine_id": "env",
    "current_resource": "env",
    "current_scope": "scope",
    "device_prior_placement": "scope",
    "eager_execution_enabled": "session",
    "enable_eager_execution": "session",
    "fixed_placement": "scope",
    "function_config": "function_config",
    "get_all_variables": "checkpoint",
    "get_variable": "variable",
    "global_function": "job",
    "load_variables": "checkpoint",
    "mirrored_view_enabled": "scope",
    "name_scope": "scope",
    "pack": "streams",
    "parallel_cast": "distribute",
    "sync_default_session": "session",
    "unpack": "streams",
    "watch": "watch",
    "watch_diff": "watch",
}
# Ops and initializers whose names holon does not have.
NAMES |= dict.fromkeys(
    (
        "clip_by_scalar", "clip_by_value", "constant", "constant_like", "constant_pad2d", "constant_scalar",
        "dim_gather", "dynamic_reshape", "elem_cnt", "expand_dims", "identity", "identity_n", "range",
        "reflection_pad2d", "replication_pad2d", "reshape_like", "reverse", "slice_update", "slice_v2",
        "sync_dynamic_resize", "tensor_scatter_nd_add", "zero_pad_2d",
    ),
    "arrays",
)  # fmt: skip
NAMES |= dict.fromkeys(
    (
        "constant_initializer", "glorot_normal_initializer", "glorot_uniform_initializer", "kaiming_initializer",
        "ones_initializer", "random_normal_initializer", "random_uniform_initializer", "truncated_normal",
        "truncated_normal_initializer", "variance_scaling_initializer", "xavier_normal_initializer",
        "xavier_uniform_initializer", "zeros_initializer",
    ),
    "initializers",
)  # fmt: skip
# Other names for the same.
_OLD = {
    "device_prior_placement": "placement",
    "fixed_placement": "placement",
    "function_config": "FunctionConfig",
    "name_scope": "namespace",
}

_loaded: list = []


def lookup(name):
    """The object oneflow.<name> of the older interface; None if there is no such name."""
    if name in MODULES:
        return import_module(f"{__name__}.{name}")
    if name in NAMES:
        return getattr(import_module(f"{__name__}.{NAMES[name]}"), _OLD.get(name, name))
    return None


def load_ops():
    """Loads the modules whose ops take the place of holon's for blobs."""
    if not _loaded:
        _loaded.append(True)
        for name in ("streams", *OPS):
            import_module(f"{__name__}.{name}")


# Modules of ops.
OPS = ("arrays", "math", "nn")
