"""Where this rank stands among all ranks."""
from ._C import local_rank as get_local_rank
from ._C import local_world_size as get_local_world_size
from ._C import rank as get_rank
from ._C import world_size as get_world_size

__all__ = ["get_local_rank", "get_local_world_size", "get_node_rank", "get_node_size", "get_rank", "get_world_size"]


def get_node_rank():
    """Returns this host's number, from 0."""
    return get_rank() // get_local_world_size()


def get_node_size():
    """Returns the number of hosts."""
    return get_world_size() // get_local_world_size()


def __getattr__(name):
    # What older programs say of machines: env.machine([...]), env.init().
    from .legacy import env

    if name[0] != "_" and hasattr(env, name):
        return getattr(env, name)
    raise AttributeError(f"env has no '{name}'. It has {', '.join(__all__)}, and of the older interface machine, ctrl_port, data_port, log_dir, init.")
