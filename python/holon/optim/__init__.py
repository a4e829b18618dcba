"""Optimizers and learning rate schedules, as in PyTorch."""

from . import lr_scheduler
from .optimizer import LAMB, LARS, SGD, Adadelta, Adagrad, Adam, AdamW, Optimizer, RMSprop

__all__ = ["Adadelta", "Adagrad", "Adam", "AdamW", "LAMB", "LARS", "Optimizer", "RMSprop", "SGD", "lr_scheduler"]


def __getattr__(name):
    from .._missing import error

    raise error("optim", name, __all__)
