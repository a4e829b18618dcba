"""save and load: state dicts and other nested values, in files of the format safetensors."""

import os

from . import _C


def save(obj, path, global_dst_rank=None, *, format="holon", shard_size=None, key_map=None):
    """Writes obj, a nested dict or list of tensors, numbers, strings, bools and None, to path;
    what was there stays until all is written.

    Without global tensors, each rank that calls writes one file. With them the call is collective: rank global_dst_rank
    gathers them and writes one file, or, without it, path becomes a folder into which every rank writes its own parts.
    Values that are not global are those of global_dst_rank, or of rank 0. A file is of the format safetensors, with the
    names of a state dict.

    format="hf": path becomes a folder as Hugging Face's libraries have it, of model.safetensors, or of
    model-0000i-of-0000n.safetensors and model.safetensors.index.json. Each file has at most shard_size of tensors, a
    number of bytes or text ("5GB", the default). obj is a dict of tensors, and of such dicts, whose keys are joined by
    dots. Every rank writes its parts of global tensors into these files; local tensors must be the same on all ranks.

    key_map: the KeyMap by which load() reads the tensors again; they are written as what it is made of, by its inverse.

    Errors: TypeError, naming the path of keys, for anything else in obj;
    RuntimeError, on all ranks, if one cannot write.
    """
    _C.save(obj, os.fspath(path), global_dst_rank, format, shard_size, _map_of("save", key_map))


def load(
    path,
    map_location=None,
    global_src_rank=None,
    *,
    sbp=None,
    prefix="",
    select=None,
    key_map=None,
    strict=True,
    dequantize=None,
):
    """Returns what save() wrote to path. Of any other safetensors file, of a folder of Hugging Face's or its index,
    returns the tensors as a dict; of a file of torch.save(), what it holds, if that is tensors and plain containers.
    Nothing in a file is ever run.

    Tensors of a file are local. Those of a folder that were global come back with their sbp or, where ranks of their
    placement are not there, on all ranks; every rank reads its own part. map_location: a device, for whole local
    tensors, or a placement, for global ones (broadcast, or as sbp says). global_src_rank: only that rank reads, and all
    tensors become global, broadcast on a placement of it alone; load_state_dict() brings them to the parameters'
    layout. Collective where results are global.

    sbp may be a function of a tensor's name in the file ("model.fc1.weight"). prefix, select and key_map load a part,
    as a dict of tensors by name: those whose names begin with prefix, which is removed, as long as select(name) is
    true, under the names that key_map(name) returns. The functions depend on the name alone. strict: to find none is an
    error (ValueError).

    dequantize: the dtype that quantised weights are read as: float8 with block scales (NAME and NAME_scale_inv) and
    MXFP4 (NAME_blocks and NAME_scales, as NAME). Without it float8 is float32, without its scales.

    Errors (RuntimeError): files that are not there, damaged or something else.
    """
    placement = map_location if isinstance(map_location, _C.placement) else None
    device = None if placement is not None else map_location
    if sbp is not None and placement is None:
        raise ValueError("load: sbp requires a placement. Pass that as map_location.")
    sbp, sbp_of = _sbp_or_function(sbp)
    path = os.fspath(path)
    return _C.load(
        path,
        global_src_rank,
        placement,
        sbp,
        device,
        prefix,
        bool(strict),
        select,
        key_map if callable(key_map) else _map_of("load", key_map),
        sbp_of,
        dequantize,
    )


def _sbp_or_function(sbp):
    # sbp.broadcast may be called as well: broadcast() is broadcast.
    return (None, sbp) if callable(sbp) and not isinstance(sbp, _C.sbp.sbp) else (sbp, None)


def _map_of(call, key_map):
    if key_map is None:
        return None
    from ._key_map import KeyMap

    if not isinstance(key_map, KeyMap):
        raise TypeError(f"{call}: key_map is a KeyMap, got {type(key_map).__name__}.")
    return key_map._map
