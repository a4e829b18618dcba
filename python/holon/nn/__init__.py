"""Modules, layers and losses, as in PyTorch; those with parameters can be made global at once (placement=, sbp=)."""
from . import functional, init, utils
from .containers import ModuleDict, ModuleList, ParameterList, Sequential
from .layers import (
    GELU,
    AvgPool2d,
    Conv2d,
    CrossEntropyLoss,
    Dropout,
    Embedding,
    Flatten,
    Identity,
    L1Loss,
    LayerNorm,
    Linear,
    LogSoftmax,
    MaxPool2d,
    MSELoss,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Tanh,
)
from .module import Module, Parameter

__all__ = [
    "AvgPool2d", "Conv2d", "CrossEntropyLoss", "Dropout", "Embedding", "Flatten", "GELU", "Identity", "L1Loss", "LayerNorm", "Linear",
    "LogSoftmax", "MSELoss", "MaxPool2d", "Module", "ModuleDict", "ModuleList", "Parameter", "ParameterList", "ReLU",
    "Sequential", "SiLU", "Sigmoid", "Softmax", "Tanh", "functional", "init", "utils",
]


def __getattr__(name):
    raise AttributeError(f"nn has no '{name}'. It has {', '.join(__all__)}.")
