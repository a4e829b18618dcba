"""Sequences of unlike lengths as one tensor: side by side with padding, or packed without."""

from typing import NamedTuple

from ... import _C


class PackedSequence(NamedTuple):
    """The steps of several sequences one after the other, and of each step the sequences that are still going on,
    longest first; batch_sizes has their numbers. sorted_indices: which sequence of the batch is at which place,
    unsorted_indices: the inverse; None where the batch is in that order."""

    data: _C.Tensor
    batch_sizes: _C.Tensor
    sorted_indices: _C.Tensor | None = None
    unsorted_indices: _C.Tensor | None = None

    def to(self, *args, **kwargs):
        """The same with data converted or moved."""
        return self._replace(data=self.data.to(*args, **kwargs))

    def cpu(self):
        """The same with data in the host's memory."""
        return self._replace(data=self.data.cpu())

    def cuda(self, *args):
        """The same with data on a CUDA device."""
        return self._replace(data=self.data.cuda(*args))


def pack_padded_sequence(input, lengths, batch_first=False, enforce_sorted=True):
    """Packs the first lengths[i] steps of each sequence of input [longest, n, ...] ([n, longest, ...] if batch_first).
    The lengths must fall, unless enforce_sorted is False."""
    lengths = lengths.tolist() if isinstance(lengths, _C.Tensor) else list(lengths)
    data, batch_sizes, order, places = _C.ops["pack_padded_sequence"](input, lengths, batch_first, enforce_sorted)
    return PackedSequence(data, batch_sizes) if enforce_sorted else PackedSequence(data, batch_sizes, order, places)


def pad_packed_sequence(sequence, batch_first=False, padding_value=0.0, total_length=None):
    """The inverse: the sequences in the batch's order, filled up with padding_value to the longest or to total_length,
    and their lengths."""
    padded, lengths = _C.ops["pad_packed_sequence"](
        sequence.data, sequence.batch_sizes.tolist(), batch_first, padding_value, total_length
    )
    order = sequence.unsorted_indices
    if order is None:
        return padded, lengths
    return padded.index_select(0 if batch_first else 1, order), lengths.index_select(0, order)


def pack_sequence(sequences, enforce_sorted=True):
    """Packs sequences [length, ...]."""
    sequences = list(sequences)
    lengths = [s.shape[0] for s in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences):
    """Returns the sequences that pack_sequence packed."""
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)


def pad_sequence(sequences, batch_first=False, padding_value=0.0):
    """Returns sequences [length, ...] side by side, [longest, n, ...] (or [n, longest, ...]),
    filled up with padding_value."""
    sequences = list(sequences)
    if not sequences:
        raise ValueError("pad_sequence: there are no sequences.")
    rest = tuple(sequences[0].shape[1:])
    for i, s in enumerate(sequences):
        if s.ndim < 1 or tuple(s.shape[1:]) != rest:
            raise ValueError(
                f"pad_sequence: sequence {i} is {list(s.shape)}, the first is {list(sequences[0].shape)}. "
                "They may differ in their first axis only."
            )
    longest = max(s.shape[0] for s in sequences)
    rows = []
    for s in sequences:
        if s.shape[0] < longest:
            size = (longest - s.shape[0], *rest)
            where = (
                {"placement": s.placement, "sbp": [_C.sbp.broadcast] * len(s.sbp)}
                if s.is_global
                else {"device": s.device}
            )
            s = _C.ops["cat"]([s, _C.ops["full"](size, padding_value, dtype=s.dtype, **where)])
        rows.append(s)
    return _C.ops["stack"](rows, 0 if batch_first else 1)


def unpad_sequence(padded_sequences, lengths, batch_first=False):
    """Returns the sequences, of the given lengths, that pad_sequence put side by side."""
    if not batch_first:
        padded_sequences = padded_sequences.transpose(0, 1)
    lengths = lengths.tolist() if isinstance(lengths, _C.Tensor) else list(lengths)
    return [padded_sequences.select(0, i).narrow(0, 0, int(n)) for i, n in enumerate(lengths)]
