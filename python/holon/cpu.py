"""Memory of the CPU's tensors: what they hold, what is kept for the next ones, and how much of both there may be. All
of it is of this process, also where its threads are ranks."""

from . import _C

__all__ = [
    "cache_high_water_mark",
    "empty_cache",
    "max_memory_allocated",
    "memory_allocated",
    "memory_limit",
    "memory_reserved",
    "memory_stats",
    "reset_peak_memory_stats",
    "set_cache_high_water_mark",
    "set_memory_limit",
]


def memory_stats():
    """Returns a dict of bytes: in_use_bytes, which tensors hold; peak_bytes, the most that they have held;
    cached_bytes, which are free and kept."""
    return _C.memory_stats()


def memory_allocated():
    """Returns the bytes that tensors hold."""
    return _C.memory_stats()["in_use_bytes"]


def max_memory_allocated():
    """Returns the most bytes that tensors have held at one time, since reset_peak_memory_stats()."""
    return _C.memory_stats()["peak_bytes"]


def memory_reserved():
    """Returns the bytes that tensors hold, and those that are kept for the next ones."""
    stats = _C.memory_stats()
    return stats["in_use_bytes"] + stats["cached_bytes"]


def reset_peak_memory_stats():
    """Counts max_memory_allocated() from now on."""
    _C.reset_peak_memory()


def empty_cache():
    """Gives what is free back to the system, except for blocks of up to 1 MiB."""
    _C.release_cached_memory()


def memory_limit():
    """Returns how many bytes tensors may use, or None if there is no limit."""
    return _C.memory_limit()


def set_memory_limit(bytes):
    """Sets the most bytes that tensors may take in all, what is kept for the next ones included; None: no limit. An
    allocation beyond it first gives back what is kept, and is a RuntimeError if that is not enough.
    HOLON_MEMORY_LIMIT_MB sets it from the start."""
    _C.set_memory_limit(bytes)


def cache_high_water_mark():
    """Returns the bytes beyond which free memory goes back to the system,
    or None where that is the most that tensors have held."""
    return _C.cache_high_water()


def set_cache_high_water_mark(bytes):
    """Sets how many bytes of free memory are kept for the next tensors: what is more goes back to the system, the
    longest unused first. None, as at first: as many as tensors have held at a time, or 64 MiB. Blocks of up to 1 MiB
    are kept in any case. HOLON_CACHE_HIGH_WATER_MB sets it from the start."""
    _C.set_cache_high_water(bytes)
