"""Where OneFlow's modules and functions are in Holon, where that is not under the same name."""

# Modules: only those that users' programs import.
MODULES = {
    "framework": "_framework",
    "framework.tensor": "_framework",
    "framework.dtype": "_framework",
    "nn.graph.graph_config": "nn.graph.config",
    "nn.graph.graph_block": "nn.graph.module",
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

# Defaults that are not Holon's: a class in Holon, its attribute, the value.
DEFAULTS = [("optim.AdamW", "_weight_decay", 0.0)]

# Functions of the package whose parameters are not Holon's: their names in _C.
FUNCTIONS = {
    name: name
    for name in (
        "argwhere",
        "empty_like",
        "full_like",
        "ones_like",
        "rand_like",
        "randint_like",
        "randn_like",
        "slice",
        "slice_update",
        "transpose",
        "unique",
        "zeros_like",
    )
}
