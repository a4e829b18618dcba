"""CUDA devices. Without one, HOLON_SIMULATE=cuda (the launcher's --simulate cuda) lets "cuda" devices and placements run on the CPU;
there is then one device for each rank of this host."""
import os
from collections import namedtuple

from . import _C
from ._typed import (
    BoolTensor,
    ByteTensor,
    CharTensor,
    DoubleTensor,
    FloatTensor,
    HalfTensor,
    IntTensor,
    LongTensor,
)

__all__ = [
    "BoolTensor", "ByteTensor", "CharTensor", "DoubleTensor", "FloatTensor", "HalfTensor", "IntTensor", "LongTensor", "current_device",
    "device_count", "empty_cache", "get_device_capability", "get_device_name", "get_device_properties", "is_available", "manual_seed",
    "manual_seed_all", "max_memory_allocated", "memory_allocated",
    "reset_peak_memory_stats", "set_device", "synchronize",
]

_Properties = namedtuple("_Properties", "name major minor total_memory multi_processor_count")


def is_available():
    """Returns whether "cuda" devices can be used: where they are simulated, they can."""
    return _C.setting("HOLON_SIMULATE") == "cuda"


def device_count():
    """Returns the number of devices of this host that programs can use: one for each of its ranks, 0 without CUDA."""
    return _C.local_world_size() if is_available() else 0


def current_device():
    """Returns the number of this rank's device."""
    _require()
    return _C.local_rank()


def set_device(device):
    """Checks that the device is this rank's own, which every rank uses from the start."""
    index = _index(device)
    if index not in (None, _C.local_rank()):
        raise ValueError(f"cuda.set_device: device {index} was asked for, but rank {_C.rank()} has device {_C.local_rank()}: the one of its "
                         "number on this host. Leave the call out, or pass env.get_local_rank().")


def synchronize(device=None):
    """Returns at once: ops have run when they return."""


def empty_cache():
    """Gives memory that is free back to the system."""
    _C.release_cached_memory()


def manual_seed(seed):
    """As holon.manual_seed: there is one source of random numbers for all devices."""
    _C.manual_seed(int(seed))


manual_seed_all = manual_seed


def memory_allocated(device=None):
    """Returns the bytes that tensors of this rank hold."""
    return _C.memory_stats()["in_use_bytes"]


def max_memory_allocated(device=None):
    """Returns the most bytes that tensors of this rank have held at one time."""
    return _C.memory_stats()["peak_bytes"]


def reset_peak_memory_stats(device=None):
    """Counts max_memory_allocated() from now on."""
    _C.reset_peak_memory()


def get_device_name(device=None):
    _require()
    return "simulated cuda device"


def get_device_capability(device=None):
    _require()
    return 0, 0


def get_device_properties(device=None):
    """Returns name, major, minor, total_memory and multi_processor_count: of a simulated device, those of this host."""
    _require()
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return _Properties(get_device_name(), 0, 0, total, os.cpu_count() or 1)


def _index(device):
    if device is None or isinstance(device, int):
        return device
    return (device if isinstance(device, _C.device) else _C.device(device)).index


def _require():
    _C.device("cuda")  # raises, and says what to do, where there is none


def __getattr__(name):
    from ._missing import error

    raise error("cuda", name, __all__)
