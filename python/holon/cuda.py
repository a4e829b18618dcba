"""CUDA devices: one for each rank of a host, counted round where ranks outnumber them. Without one, HOLON_SIMULATE=cuda
(the launcher's --simulate cuda) lets "cuda" devices and placements run on the CPU; there is then one device for each
rank of this host."""

import os
import time
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
    "BoolTensor",
    "ByteTensor",
    "CharTensor",
    "DoubleTensor",
    "Event",
    "FloatTensor",
    "HalfTensor",
    "IntTensor",
    "LongTensor",
    "current_device",
    "device_count",
    "empty_cache",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "is_available",
    "libraries",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "memory_allocated",
    "memory_reserved",
    "reset_peak_memory_stats",
    "set_device",
    "synchronize",
]

_Properties = namedtuple("_Properties", "name major minor total_memory multi_processor_count")


def is_available():
    """Returns whether "cuda" devices can be used: where they are simulated, they can. Warns of a CUDA backend that is
    there and cannot be loaded, or is of another version of Holon."""
    if _simulated() or _C.cuda_device_count() > 0:
        return True
    if _C.cuda_backend_broken():
        import warnings

        warnings.warn(f"no cuda device can be used: {_C.why_no_device()}.", RuntimeWarning, stacklevel=2)
    return False


def _simulated():
    return _C.setting("HOLON_SIMULATE") == "cuda"


def device_count():
    """Returns the number of devices of this host that programs can use, 0 without CUDA;
    of simulated ones there is one for each rank."""
    return _C.local_world_size() if _simulated() else _C.cuda_device_count()


def current_device():
    """Returns the number of this rank's device."""
    return _C.device("cuda").index  # raises, and says what to do, where there is none


def set_device(device):
    """Checks that the device is this rank's own, which every rank uses from the start."""
    index = _index(device)
    if index not in (None, current_device()):
        raise ValueError(
            f"cuda.set_device: device {index} was requested, but rank {_C.rank()} has device {current_device()}: the "
            "one of its number on this host. Leave the call out, or pass env.get_local_rank()."
        )


def synchronize(device=None):
    """Waits for all work of this rank on the device, and raises what that found wrong. Of simulated devices, ops have
    run when they return; without any there is nothing to wait for."""
    if not _simulated() and is_available():
        _C.cuda_synchronize(_of(device))


class Event:
    """A place in the order of this rank's work on its device, to wait for or to take times by.
    Where devices are simulated, the host's clock."""

    def __init__(self, enable_timing=False, blocking=False):
        self._event = _HostEvent() if _simulated() else _C.cuda_event(current_device(), bool(enable_timing))

    def record(self):
        """Moves it after all work enqueued so far."""
        self._event.record()

    def query(self):
        """Returns whether the work before it is done."""
        return self._event.query()

    def synchronize(self):
        """Waits for the work before it, and raises what that found wrong."""
        self._event.synchronize()

    def elapsed_time(self, end_event):
        """Returns the milliseconds from this event to `end_event`;
        both take times (enable_timing=True) and are done."""
        return end_event._event.elapsed_ms(self._event)


class _HostEvent:
    """That of a simulated device, whose work is done when a call returns."""

    at = None

    def record(self):
        self.at = time.perf_counter()

    def query(self):
        return True

    def synchronize(self):
        pass

    def elapsed_ms(self, since):
        if self.at is None or since.at is None:
            raise RuntimeError("the time between two events: one of them was never recorded. Call record() on both.")
        return (self.at - since.at) * 1e3


def empty_cache():
    """Gives memory that is free back to the system."""
    _C.release_cached_memory()
    if not _simulated() and is_available():
        _C.cuda_release_cached_memory(current_device())


def manual_seed(seed):
    """As holon.manual_seed: there is one source of random numbers for all devices."""
    _C.manual_seed(int(seed))


manual_seed_all = manual_seed


def memory_allocated(device=None):
    """Returns the bytes that tensors of this rank hold on the device;
    without one, those on the CPU, as for the other figures."""
    return _stats(device)["in_use_bytes"]


def max_memory_allocated(device=None):
    """Returns the most bytes that tensors of this rank have held on the device at one time."""
    return _stats(device)["peak_bytes"]


def memory_reserved(device=None):
    """Returns the bytes that this rank has taken from the device, cached ones included."""
    stats = _stats(device)
    return stats["in_use_bytes"] + stats["cached_bytes"]


def reset_peak_memory_stats(device=None):
    """Counts max_memory_allocated() from now on."""
    if _simulated() or not is_available():
        _C.reset_peak_memory()
    else:
        _C.cuda_reset_peak_memory(_of(device))


def libraries():
    """Returns the libraries of NVIDIA's that the backend uses: the file each was loaded from, or why it was not found
    and where it was looked for. They are looked for by the loader, in PyPI's packages (nvidia/*/lib), and in the
    toolkits of /usr/local."""
    for name in ("libcudnn.so.9", "libnccl.so.2"):  # loaded when they are first needed, else
        _C.load_vendor_library(name)
    return _C.vendor_libraries()


def get_device_name(device=None):
    """Returns the device's name, e.g. "NVIDIA H200"."""
    return get_device_properties(device).name


def get_device_capability(device=None):
    """Returns the compute capability as (major, minor)."""
    return get_device_properties(device)[1:3]


def get_device_properties(device=None):
    """Returns name, major, minor, total_memory (bytes) and multi_processor_count:
    of a simulated device, those of this host."""
    index = _of(device)
    if not _simulated():
        return _Properties(*_C.cuda_properties(index))
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return _Properties("simulated cuda device", 0, 0, total, os.cpu_count() or 1)


def _stats(device):
    return _C.memory_stats() if _simulated() or not is_available() else _C.cuda_memory_stats(_of(device))


def _of(device):
    """The number of a device, this rank's where none is given. Errors: there is none of that number."""
    index = _index(device)
    return current_device() if index is None else _C.device(f"cuda:{index}").index


def _index(device):
    if device is None or isinstance(device, int):
        return device
    return (device if isinstance(device, _C.device) else _C.device(device)).index


def __getattr__(name):
    from ._missing import error

    raise error("cuda", name, __all__)
