"""Sequences of unlike lengths as one tensor."""

from ... import _C


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
