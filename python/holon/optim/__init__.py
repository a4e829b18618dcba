"""Optimizers and learning rate schedules, as in PyTorch."""
from . import lr_scheduler
from .optimizer import SGD, Adam, AdamW, Optimizer

__all__ = ["Adam", "AdamW", "Optimizer", "SGD", "lr_scheduler"]


def __getattr__(name):
    raise AttributeError(f"optim has no '{name}'. It has {', '.join(__all__)}.")
