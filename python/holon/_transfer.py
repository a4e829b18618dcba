"""export and receive: weights that go from one job to another without files."""

from . import _C, nn
from ._checkpoint import _map_of, _sbp_or_function


def export(obj, to, *, timeout=60, token=None):
    """Sends obj, as save() takes it, or a module's state_dict(), to the job that receives at the address `to`
    ("host:port"), and returns when that has all it wants.

    All ranks of both jobs call: the numbers of ranks, placements and sbps may differ. Each rank serves its parts of
    global tensors; what is not global is rank 0's. The tensors must not change meanwhile.

    timeout: how many seconds to wait for the other job to come; HOLON_COMM_TIMEOUT_S applies to each wait after that.
    token: a secret that both jobs know, by default HOLON_TRANSFER_TOKEN; required unless the address is on this host
    ("localhost:29600"). It is proven and never sent; what follows is neither encrypted nor signed.

    Errors: RuntimeError, on all ranks of both jobs, if a rank of either fails, dies or is silent; ValueError for an
    address of another host without a token.
    """
    if isinstance(obj, nn.Module):
        obj = obj.state_dict()
    _C.export_to(obj, to, timeout, token)


def receive(
    address,
    placement=None,
    *,
    into=None,
    sbp=None,
    device=None,
    prefix="",
    select=None,
    key_map=None,
    strict=True,
    dequantize=None,
    timeout=60,
    token=None,
):
    """Returns what another job exports to the address ("host:port"), at which rank 0 listens until it comes.

    Global tensors come with their sbp or, where ranks of their placement are not there, on all ranks. placement and sbp
    (one, or a function of a tensor's name) make all of them global there, device makes them local and whole. Each rank
    receives its part, from the ranks that hold it; of tensors of 1 MiB or more, what several ranks need is sent once.
    prefix, select, key_map, strict and dequantize are as in load().

    into: a module. Each tensor is received in the layout of the parameter or buffer of its name, and put into it by
    load_state_dict(), whose result is returned. If there is an error, the module stays as it was.

    timeout, token and errors: as export(). Collective over all ranks.
    """
    if sbp is not None and placement is None:
        raise ValueError("receive: sbp requires a placement.")
    sbp, sbp_of = _sbp_or_function(sbp)
    like = None
    if into is not None:
        like = {name: t for name, t in into.state_dict().items() if isinstance(t, _C.Tensor)}
        if not like:
            raise ValueError("receive: the module has no parameters and no buffers to receive into.")
    found = _C.receive(
        address,
        placement,
        sbp,
        device,
        prefix,
        bool(strict),
        select,
        key_map if callable(key_map) else _map_of("receive", key_map),
        sbp_of,
        dequantize,
        like,
        timeout,
        token,
    )
    return found if into is None else into.load_state_dict(found, strict=strict)
