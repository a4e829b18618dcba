"""Parameters as one vector; modules without first values."""

from ... import _C
from ...autograd import no_grad


def parameters_to_vector(parameters):
    """Returns all parameters as one vector, one after the other. They are all local, or on one placement."""
    return _C.ops["cat"]([p.reshape(-1) for p in parameters])


@no_grad()
def vector_to_parameters(vec, parameters):
    """Writes the pieces of a vector, as parameters_to_vector gives it, into the parameters."""
    parameters = list(parameters)
    wanted = sum(p.numel() for p in parameters)
    if vec.ndim != 1 or vec.numel() != wanted:
        raise ValueError(
            f"vector_to_parameters: the vector is {list(vec.shape)}, the parameters have {wanted} elements."
        )
    start = 0
    for p in parameters:
        piece = vec.narrow(0, start, p.numel()).reshape(p.shape)
        p.copy_(piece.to_global(p.placement, p.sbp) if p.is_global else piece)
        start += p.numel()


def skip_init(module_cls, *args, **kwargs):
    """Returns module_cls(*args, **kwargs) with parameters whose values are whatever was in memory: reset_parameters of
    the class does nothing meanwhile. For a module whose state is loaded next."""
    if "reset_parameters" not in dir(module_cls):
        raise ValueError(f"skip_init: {module_cls.__name__} has no reset_parameters() to skip.")

    # A separate class, so that a module created in another thread meanwhile is drawn as usual.
    bare = type(module_cls.__name__, (module_cls,), {"reset_parameters": lambda self: None})
    module = bare(*args, **kwargs)
    module.__class__ = module_cls
    return module
