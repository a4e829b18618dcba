"""What ranks say to each other outside of tensors."""
from . import _C


def barrier():
    """Waits until all ranks are here. Collective over the world."""
    _C.barrier()
