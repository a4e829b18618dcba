"""From a list of samples to a batch."""

from collections.abc import Mapping, Sequence

import numpy as np

from ... import _C


def default_collate(batch, padding_value=None):
    """Puts samples together: tensors and arrays on a new first axis, numbers into a tensor,
    dicts and tuples by their parts.

    padding_value: with it, or with one for each part in a dict, list or tuple,
    axes of different sizes are padded at their ends to the longest.
    """
    from ... import pad, stack

    first = batch[0]
    if isinstance(first, _C.Tensor):
        sizes = _common_shape([tuple(t.shape) for t in batch], padding_value)
        if sizes is not None:
            # pad() begins with the last axis
            batch = [
                pad(t, [n for d in reversed(range(t.ndim)) for n in (0, sizes[d] - t.shape[d])], value=padding_value)
                for t in batch
            ]
        return stack(list(batch), 0)
    if isinstance(first, (np.ndarray, np.generic)):
        if isinstance(first, (np.str_, np.bytes_)) or first.dtype.kind in "SUO":
            if isinstance(first, (np.str_, np.bytes_)):
                return list(batch)
            raise TypeError(f"arrays of {first.dtype} make no batch. Give the loader a collate_fn.")
        sizes = _common_shape([np.shape(a) for a in batch], padding_value)
        if sizes is not None:
            padded = np.full((len(batch), *sizes), padding_value, np.result_type(*batch))
            for row, a in zip(padded, batch):
                row[tuple(slice(n) for n in a.shape)] = a
            return _C.from_numpy(padded)
        return _C.from_numpy(np.stack(batch))
    if isinstance(first, bool):
        return _C.tensor(list(batch), dtype=_C.bool)
    if isinstance(first, int):
        return _C.tensor(list(batch), dtype=_C.int64)
    if isinstance(first, float):
        return _C.tensor(list(batch), dtype=_C.float64)
    if isinstance(first, (str, bytes)):
        return list(batch)
    if isinstance(first, Mapping):
        parts = {
            key: default_collate([sample[key] for sample in batch], padding_of(padding_value, key)) for key in first
        }
        try:
            return type(first)(parts)
        except TypeError:
            return parts
    if isinstance(first, Sequence):
        sizes = {len(sample) for sample in batch}
        if len(sizes) > 1:
            raise ValueError(
                f"samples of a batch have {sorted(sizes)} parts. Make them alike, or give the loader a collate_fn."
            )
        parts = [default_collate(list(part), padding_of(padding_value, key)) for key, part in enumerate(zip(*batch))]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts) if isinstance(first, tuple) else parts
    raise TypeError(
        f"samples of type {type(first).__name__} make no batch. Return tensors, arrays, numbers, strings, or dicts and "
        "tuples of them, or give the loader a collate_fn."
    )


def _common_shape(shapes, padding_value):
    """The shape that samples are to be padded to; None where they are alike."""
    if len(set(shapes)) == 1:
        return None
    if padding_value is None or len({len(s) for s in shapes}) > 1:
        raise ValueError(
            f"samples of a batch have shapes {sorted(set(shapes))}. "
            "Make them alike, give the loader a padding_value for other lengths, or a collate_fn."
        )
    return tuple(max(sizes) for sizes in zip(*shapes))


def padding_of(padding_value, key):
    """What of a padding_value is for a part of a batch."""
    if isinstance(padding_value, Mapping):
        return padding_value.get(key)
    if isinstance(padding_value, (list, tuple)):
        if key >= len(padding_value):
            raise ValueError(f"padding_value has {len(padding_value)} parts, the batch has more. Give one for each.")
        return padding_value[key]
    return padding_value


def default_convert(sample):
    """What a loader without batches makes of a sample: arrays become tensors, the rest stays."""
    return map_batch(
        lambda x: (
            _C.from_numpy(np.ascontiguousarray(x)) if isinstance(x, np.ndarray) and x.dtype.kind not in "SUO" else x
        ),
        sample,
    )


def map_batch(function, batch):
    """The batch with function applied to everything in it that is not a dict, list or tuple."""
    if isinstance(batch, Mapping):
        parts = {key: map_batch(function, value) for key, value in batch.items()}
        try:
            return type(batch)(parts)
        except TypeError:
            return parts
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_batch(function, x) for x in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(map_batch(function, x) for x in batch)
    return function(batch)
