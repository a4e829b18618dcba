"""This rank's place among all ranks."""

from . import _C
from ._C import local_rank as get_local_rank
from ._C import local_world_size as get_local_world_size
from ._C import rank as get_rank
from ._C import world_size as get_world_size

__all__ = [
    "all_device_placement",
    "get_local_rank",
    "get_local_world_size",
    "get_node_rank",
    "get_node_size",
    "get_rank",
    "get_world_size",
]


def get_node_rank():
    """Returns this host's number, from 0."""
    return get_rank() // get_local_world_size()


def get_node_size():
    """Returns the number of hosts."""
    return get_world_size() // get_local_world_size()


def all_device_placement(device_type):
    """Returns the placement of all ranks: placement.all(device_type)."""
    return _C.placement.all(device_type)


def __getattr__(name):
    from ._missing import error

    raise error("env", name, __all__)
