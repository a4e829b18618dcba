"""cuDNN's settings. enabled says whether devices leave convolutions and attention to it, at first what HOLON_CUDNN
says; allow_tf32 whether float32 convolutions may round their factors to TF32 (10 bits of mantissa), at first what
HOLON_TF32 says. The others are accepted and have no effect: results have the same bits in every run."""

import sys
import types

from .. import _C

# Programs set these.
benchmark = False
deterministic = True


def is_available():
    return False


class _Settings(types.ModuleType):
    @property
    def enabled(self):
        return _C.cudnn_enabled()

    @enabled.setter
    def enabled(self, on):
        _C.set_cudnn_enabled(bool(on))

    @property
    def allow_tf32(self):
        return _C.tf32_convolutions()

    @allow_tf32.setter
    def allow_tf32(self, on):
        _C.set_tf32_convolutions(bool(on))


sys.modules[__name__].__class__ = _Settings
