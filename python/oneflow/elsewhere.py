"""Where OneFlow's modules and functions are in Holon, where that is not under the same name."""

# Modules: only those that users' programs import.
MODULES = {
    "nn.modules": "nn",
    "nn.modules.module": "nn.module",
    "nn.modules.container": "nn.containers",
    "nn.modules.utils": "nn.options",
    "nn.modules.linear": "nn.linear",
    "nn.modules.conv": "nn.conv",
    "nn.modules.batchnorm": "nn.norm",
    "nn.modules.normalization": "nn.norm",
    "nn.modules.dropout": "nn.dropout",
    "nn.modules.activation": "nn.activation",
    "nn.modules.loss": "nn.loss",
    "nn.modules.sparse": "nn.sparse",
    "nn.modules.pooling": "nn.pooling",
    "nn.optimizer": "optim",
    "nn.optimizer.optimizer": "optim.optimizer",
    "nn.optimizer.lr_scheduler": "optim.lr_scheduler",
    "nn.parallel.distributed": "nn.parallel",
    "autograd.autograd_function": "autograd",
    "comm.comm_ops": "comm",
    "utils.data.distributed": "utils.data.sampler",
}

# Modules that are files of this package under another name.
FILES = {
    "boxing.nccl": "oneflow.more.boxing.nccl",
    "checkpoint": "oneflow.single_client.checkpoint",
    "nn.graph": "oneflow.more.graph",
    "nn.graph.graph": "oneflow.more.graph",
    "nn.graph.graph_block": "oneflow.more.graph.module",
    "nn.graph.graph_config": "oneflow.more.graph.config",
    "nn.graph.util": "oneflow.more.graph.util",
    "typing": "oneflow.single_client.typing",
    "unittest": "oneflow.more.unittest",
}

# Modules of Holon's that have more names here, and the module of these; None where only modules in it have.
EXTENDED = {
    "backends": None,
    "backends.cudnn": "oneflow.more.cudnn",
    "boxing": "oneflow.more.boxing",
    "env": "oneflow.single_client.env",
    "nn": "oneflow.single_client.nn",
    "random": "oneflow.single_client.random",
}

# Classes of Holon's modules in whose place there is one here, and its module.
CLASSES = {"nn.Graph": "oneflow.more.graph"}

# Defaults that are not Holon's: a class in Holon, its attribute, the value. The rules: eps under RMSprop's root,
# and LAMB's trust ratio without the decay. Then: optimizers of nothing, parameters themselves in state_dict(),
# parameters of integers.
DEFAULTS = [
    ("optim.AdamW", "_weight_decay", 0.0),
    ("optim.RMSprop", "_rule", "rmsprop:eps_in_root"),
    ("optim.LAMB", "_rule", "lamb:ratio_before_decay"),
    ("optim.Optimizer", "_needs_parameters", False),
    ("nn.Module", "_detaches_state", False),
    ("nn.Parameter", "_may_be_integers", True),
]

# Methods whose defaults are not Holon's: their functions in _C.
METHODS = ("log_softmax", "softmax")

# Functions of the package whose parameters are not Holon's: their names in _C.
FUNCTIONS = {
    name: name
    for name in (
        "argwhere",
        "empty_like",
        "full_like",
        "log_softmax",
        "ones_like",
        "rand_like",
        "randint_like",
        "randn_like",
        "slice",
        "slice_update",
        "softmax",
        "transpose",
        "unique",
        "zeros_like",
    )
}
