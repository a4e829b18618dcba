"""Learning rates that change over time. A schedule is a formula of the step, so that it goes on rightly from any step;
`step()` is called once after each optimizer.step(). The formulas are C++ (holon/optim/schedule.h).

Several schedules on one optimizer act one after the other:
what the first makes of the base rate is the base of the next.
"""

from .base import LRScheduler
from .composed import ChainedScheduler, SequentialLR, WarmUpLR, WarmupLR
from .cyclic import CyclicLR, OneCycleLR
from .plateau import ReduceLROnPlateau
from .simple import (
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    CosineDecayLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CosineDecayLR",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
    "WarmUpLR",
    "WarmupLR",
]

_LRScheduler = LRScheduler


def __getattr__(name):
    from ..._missing import error

    raise error("optim.lr_scheduler", name, __all__)
