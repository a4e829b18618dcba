"""cuDNN's settings. allow_tf32 says whether float32 convolutions may round their factors to TF32 (10 bits of mantissa);
at first what HOLON_TF32 says. The others are accepted and have no effect: convolutions and norms choose their kernels
by themselves."""

import sys
import types

from .. import _C

# Programs set these.
enabled = True
benchmark = False
deterministic = True


def is_available():
    return False


class _Settings(types.ModuleType):
    @property
    def allow_tf32(self):
        return _C.tf32_convolutions()

    @allow_tf32.setter
    def allow_tf32(self, on):
        _C.set_tf32_convolutions(bool(on))


sys.modules[__name__].__class__ = _Settings
