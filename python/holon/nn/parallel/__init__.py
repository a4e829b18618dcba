"""A local module on every rank, each with its share of the data. (With global tensors nothing of this kind is needed: parameters that
are broadcast and batches that are split are data parallel.)"""

from ... import _C
from ...autograd import no_grad

__all__ = ["DistributedDataParallel"]


def DistributedDataParallel(module, *, broadcast_buffers=True, broadcast_parameters=True, bucket_size=10, **accepted):
    """Makes training of a local module data parallel, and returns the module itself.

    Its parameters become those of rank 0; in backward each gradient becomes the mean over all ranks. broadcast_buffers: before each call
    the buffers become those of rank 0. All parameters must take part in each backward, in the same order on all ranks. bucket_size, and
    PyTorch's device_ids, output_device and the like, have no effect.
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
                f"DistributedDataParallel: {name} is global {tensor.sbp} on {tensor.placement}. A global module needs no wrapper: split "
                "the batch, sbp.split(0), and its gradients are summed."
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
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.register_hook(mean)
    if broadcast_buffers and any(True for _ in module.buffers()):
        module.register_forward_pre_hook(lambda m, args: broadcast(m.buffers()))
    return module
