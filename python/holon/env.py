"""Where this rank stands among all ranks."""
from . import _C


def get_rank():
    """Returns this rank's number, from 0."""
    return _C.rank()


def get_world_size():
    """Returns the number of ranks."""
    return _C.world_size()


def get_local_rank():
    """Returns this rank's number on its host."""
    return _C.local_rank()


def get_node_size():
    """Returns the number of hosts."""
    return -(-_C.world_size() // _C.local_world_size())


def get_node_rank():
    """Returns this host's number, from 0."""
    return _C.rank() // _C.local_world_size()


def is_multi_client():
    """Returns whether every rank runs the program itself, which is always so."""
    return True
