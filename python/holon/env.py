"""Where this rank stands among all ranks."""
from . import _C

get_rank = _C.rank
get_world_size = _C.world_size
get_local_rank = _C.local_rank


def get_node_size():
    """Returns the number of hosts."""
    return -(-_C.world_size() // _C.local_world_size())


def get_node_rank():
    """Returns this host's number, from 0."""
    return _C.rank() // _C.local_world_size()
