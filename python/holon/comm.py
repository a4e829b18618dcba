"""Communication besides global tensors: collectives on local tensors, in place. All ranks of the
world call them, except send() and recv(), which are between two."""

from . import _C
from ._C import barrier
from .autograd import no_grad

__all__ = [
    "all_gather",
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "gather",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "send",
]

_split, _broadcast, _partial_sum = _C.sbp.split(0), _C.sbp.broadcast, _C.sbp.partial_sum


def _tensor(call, tensor):
    if not isinstance(tensor, _C.Tensor):
        raise TypeError(f"comm.{call}: takes local tensors, got {type(tensor).__name__}.")
    if tensor.is_global:
        raise ValueError(
            f"comm.{call}: takes local tensors; this one is global {list(tensor.shape)}, {tensor.sbp}. "
            "For another layout use to_global()."
        )
    return tensor


def _tensors(call, name, tensors):
    if not isinstance(tensors, (list, tuple)) or len(tensors) != _C.world_size():
        found = f"{len(tensors)}" if isinstance(tensors, (list, tuple)) else type(tensors).__name__
        raise ValueError(
            f"comm.{call}: {name} must be a list of one tensor for each of {_C.world_size()} ranks, got {found}."
        )
    for t in tensors:
        _tensor(call, t)
    return tensors


def _rank(call, name, rank):
    if not isinstance(rank, int) or not 0 <= rank < _C.world_size():
        raise ValueError(f"comm.{call}: {name} is {rank!r}; it must be a rank from 0 to {_C.world_size() - 1}.")
    return rank


def _everyone(tensor, first=0):
    """All ranks; under broadcast the value of the first one counts."""
    ranks = [first, *(r for r in range(_C.world_size()) if r != first)]
    return _C.placement(tensor.device.type, ranks)


def _moved(tensor, before, after):
    everyone = _everyone(tensor)
    with no_grad():
        return tensor.detach().to_global(everyone, before).to_global(sbp=after).to_local()


def _write(call, into, value):
    if tuple(into.shape) != tuple(value.shape):
        raise ValueError(
            f"comm.{call}: the result is {list(value.shape)}, the tensor that is to hold it {list(into.shape)}."
        )
    with no_grad():
        return into.detach().copy_(value)


def all_reduce(tensor):
    """The tensor becomes the sum of all ranks', and is returned."""
    _write("all_reduce", _tensor("all_reduce", tensor), _moved(tensor, _partial_sum, _broadcast))
    return tensor


def reduce(tensor, dst):
    """The tensor becomes the sum of all ranks' on rank dst; on the others it stays."""
    _rank("reduce", "dst", dst)
    value = _moved(_tensor("reduce", tensor), _partial_sum, _broadcast)
    if _C.rank() == dst:
        _write("reduce", tensor, value)


def broadcast(tensor, src=0):
    """The tensor becomes that of rank src, and is returned."""
    _tensor("broadcast", tensor)
    with no_grad():
        value = (
            tensor.detach().clone().to_global(_everyone(tensor, _rank("broadcast", "src", src)), _broadcast).to_local()
        )
    _write("broadcast", tensor, value)
    return tensor


def all_gather_into_tensor(output_tensor, input_tensor):
    """The output becomes all ranks' inputs, one behind the other along the first axis,
    or side by side along a new one."""
    _tensor("all_gather_into_tensor", output_tensor)
    value = _moved(_tensor("all_gather_into_tensor", input_tensor).unsqueeze(0), _split, _broadcast)
    if output_tensor.numel() != value.numel():
        raise ValueError(
            f"comm.all_gather_into_tensor: {_C.world_size()} inputs of {list(input_tensor.shape)} do not fill an "
            f"output of {list(output_tensor.shape)}."
        )
    _write("all_gather_into_tensor", output_tensor, value.reshape(output_tensor.shape))


def all_gather(tensor_list, tensor):
    """The tensors of the list become those of all ranks."""
    _tensors("all_gather", "tensor_list", tensor_list)
    rows = _moved(_tensor("all_gather", tensor).unsqueeze(0), _split, _broadcast)
    for into, row in zip(tensor_list, rows):
        _write("all_gather", into, row)


def gather(tensor, gather_list=None, dst=0):
    """On rank dst the tensors of gather_list become those of all ranks."""
    _rank("gather", "dst", dst)
    rows = _moved(_tensor("gather", tensor).unsqueeze(0), _split, _broadcast)
    if _C.rank() == dst:
        for into, row in zip(_tensors("gather", "gather_list", gather_list), rows):
            _write("gather", into, row)


def scatter(tensor, scatter_list=None, src=0):
    """The tensor becomes the one of this rank's number in the list that rank src gives."""
    world, rank = _C.world_size(), _C.rank()
    _tensor("scatter", tensor)
    if rank == _rank("scatter", "src", src):
        parts = [t.detach() for t in _tensors("scatter", "scatter_list", scatter_list)]
    else:
        parts = [tensor.detach()] * world  # what is not rank src's is not looked at
    with no_grad():
        whole = _C.ops["stack"](parts).to_global(_everyone(tensor, src), _broadcast)
        _write("scatter", tensor, whole.to_local()[rank])


def all_to_all(output_tensor_list, input_tensor_list):
    """The i-th output becomes what rank i has as the input of this rank's number."""
    outputs = _tensors("all_to_all", "output_tensor_list", output_tensor_list)
    inputs = _C.ops["stack"]([t.detach() for t in _tensors("all_to_all", "input_tensor_list", input_tensor_list)])
    rows = _moved(inputs.unsqueeze(0), _split, _C.sbp.split(1))
    for into, row in zip(outputs, rows):
        _write("all_to_all", into, row[0])


def reduce_scatter(output, input_list):
    """The output becomes the sum over all ranks of the inputs of this rank's number."""
    _tensor("reduce_scatter", output)
    inputs = _C.ops["stack"]([t.detach() for t in _tensors("reduce_scatter", "input_list", input_list)])
    _write("reduce_scatter", output, _moved(inputs, _partial_sum, _split)[0])


def reduce_scatter_tensor(output_tensor, input_tensor):
    """The output becomes this rank's part, of equally many elements in order, of the sum of all ranks' inputs."""
    _tensor("reduce_scatter_tensor", output_tensor)
    world = _C.world_size()
    if _tensor("reduce_scatter_tensor", input_tensor).numel() != output_tensor.numel() * world:
        raise ValueError(
            f"comm.reduce_scatter_tensor: an input of {list(input_tensor.shape)} is not {world} outputs of "
            f"{list(output_tensor.shape)}."
        )
    value = _moved(input_tensor.reshape(world, *output_tensor.shape), _partial_sum, _split)
    _write("reduce_scatter_tensor", output_tensor, value[0])


def send(tensor, dst, send_meta=True):
    """Gives the tensor to rank dst, which calls recv() at the same time.
    send_meta: its shape and dtype go before it."""
    _C.send(_tensor("send", tensor), dst, send_meta)


def recv(src, shape=None, dtype=None, device=None, *, out=None):
    """Returns the tensor that rank src gives by send(); out, if given, takes its values and is returned.

    shape, dtype and device are for send(send_meta=False), and are then given all three.
    """
    given = [x is not None for x in (shape, dtype, device)]
    if any(given) and not all(given):
        raise ValueError(
            "comm.recv: shape, dtype and device belong together: "
            "give all three where send() has send_meta=False, else none."
        )
    value = _C.recv(src, shape, dtype, device)
    if out is None:
        return value
    _write("recv", _tensor("recv", out), value)
    return out


def __getattr__(name):
    from ._missing import error

    raise error("comm", name, __all__)
