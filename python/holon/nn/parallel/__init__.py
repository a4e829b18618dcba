"""A local module on every rank, each with its share of the data. (With global tensors nothing of this kind is needed:
parameters that are broadcast and batches that are split are data parallel.)"""

from ... import _C
from ...autograd import Function, no_grad

__all__ = ["DistributedDataParallel"]


class _WithParameters(Function):
    """Hands results through; in backward every parameter gets a zero, too. So all have a gradient on every rank,
    however often it used them, and all ranks sum them in one order: that of these zeros, which come first."""

    @staticmethod
    def forward(ctx, parameters, n_results, *tensors):
        ctx.parameters = parameters
        return tensors[:n_results]

    @staticmethod
    def backward(ctx, *grads):
        return (None, None, *grads, *(_C.ops["zeros_like"](p) for p in ctx.parameters))


def _tensors(value):
    """The tensors of a nested value that can have a gradient."""
    if isinstance(value, _C.Tensor):
        return [value] if value.dtype.is_floating_point else []
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return []
    return [t for item in value for t in _tensors(item)]


def _replaced(value, tensors):
    """The value with the next of the iterator's tensors in the place of each that _tensors() found."""
    if isinstance(value, _C.Tensor):
        return next(tensors) if value.dtype.is_floating_point else value
    if isinstance(value, dict):
        return type(value)((k, _replaced(v, tensors)) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        items = [_replaced(v, tensors) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def DistributedDataParallel(module, *, broadcast_buffers=True, broadcast_parameters=True, bucket_size=10, **accepted):
    """Makes training of a local module data parallel, and returns the module itself.

    Its parameters become those of rank 0; in backward each gradient becomes the mean over all ranks. broadcast_buffers:
    before each call the buffers become those of rank 0. A rank may use a parameter several times or not at all, and
    parameters may be frozen and freed later, alike on all ranks; what the loss reads of a parameter outside the
    module's results must be alike, too. bucket_size, and PyTorch's device_ids, output_device and the like, have no
    effect.
    """
    unknown = set(accepted) - {
        "device_ids",
        "output_device",
        "dim",
        "find_unused_parameters",
        "gradient_as_bucket_view",
        "static_graph",
        "bucket_cap_mb",
        "process_group",
        "use_bucket",
    }
    if unknown:
        raise TypeError(f"DistributedDataParallel got an unexpected option {sorted(unknown)[0]!r}.")
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_global:
            raise ValueError(
                f"DistributedDataParallel: {name} is global {tensor.sbp} on {tensor.placement}. A global module needs "
                "no wrapper: split the batch, sbp.split(0), and its gradients are summed."
            )
    from ... import comm

    world = _C.world_size()
    if world == 1:
        return module

    def broadcast(tensors):
        with no_grad():
            for tensor in tensors:
                comm.broadcast(tensor, 0)

    def mean(grad):
        with no_grad():
            return comm.all_reduce(grad.detach().clone()) / world

    if broadcast_parameters:
        broadcast(module.parameters())
    hooked = {}

    def trained():
        found = [p for p in module.parameters() if p.requires_grad]
        for p in found:
            if id(p) not in hooked:
                hooked[id(p)] = p, p.register_hook(mean)
        return found

    def with_parameters(m, args, result):
        if not _C.is_grad_enabled():
            return None
        parameters, results = trained(), _tensors(result)
        if not parameters or not results:
            return None
        return _replaced(result, iter(_WithParameters.apply(parameters, len(results), *results, *parameters)))

    trained()
    module.register_forward_hook(with_parameters)
    if broadcast_buffers and any(True for _ in module.buffers()):
        module.register_forward_pre_hook(lambda m, args: broadcast(m.buffers()))
    return module
