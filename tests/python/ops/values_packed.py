"""Packed sequences, and the dropouts that only draws of their own can show."""

import numpy as np
from op_table import a, no_truth, row, wrong


def pack(x, lengths, batch_first=False, enforce_sorted=True):
    if batch_first:
        x = x.swapaxes(0, 1)
    order = np.argsort(-np.array(lengths), kind="stable")
    data, sizes = [], []
    for t in range(max(lengths)):
        alive = [n for n in order if lengths[n] > t]
        data += [x[t, n] for n in alive]
        sizes.append(len(alive))
    return np.array(data), np.array(sizes), order, np.argsort(order)


def pad(data, batch_sizes, batch_first=False, padding_value=0.0, total_length=None):
    batch_sizes = np.asarray(batch_sizes)
    n = batch_sizes[0]
    y = np.full((total_length or len(batch_sizes), n, *data.shape[1:]), float(padding_value))
    at = 0
    for t, size in enumerate(batch_sizes):
        y[t, :size] = data[at : at + size]
        at += size
    return y.swapaxes(0, 1) if batch_first else y, np.array([sum(batch_sizes > k) for k in range(n)])


falling, mixed = [5, 3, 3, 1], [2, 5, 1, 5]
row("pack_padded_sequence", pack, a(5, 4, 2), falling)
row("pack_padded_sequence", pack, a(4, 5, 2), falling, True)
row("pack_padded_sequence", pack, a(5, 4), mixed, False, False)
row("pack_padded_sequence", pack, a(4, 6, 2, 3), mixed, True, False)
wrong("pack_padded_sequence", a(5, 4), mixed, error=ValueError, says="do not fall.*enforce_sorted=False")
wrong("pack_padded_sequence", a(5, 4), falling[:3], error=ValueError, says="with 3 lengths")
wrong("pack_padded_sequence", a(5, 4), [4, 2, 2, 0], error=ValueError, says="a length is 0")
wrong("pack_padded_sequence", a(4, 4), falling, error=ValueError, says="a length is 5")
wrong("pack_padded_sequence", a(5), falling, error=ValueError, says="it takes")

sizes = [4, 3, 3, 1, 1]
row("pad_packed_sequence", pad, a(12, 2), sizes)
row("pad_packed_sequence", pad, a(12), sizes, True, 0.5, 7)
row("pad_packed_sequence", pad, a(6, 2), [2, 2, 2])
wrong("pad_packed_sequence", a(11, 2), sizes, error=ValueError, says="of 12 elements")
wrong("pad_packed_sequence", a(12, 2), sizes[::-1], error=ValueError, says="must fall")
wrong("pad_packed_sequence", a(12, 2), sizes, total_length=4, error=ValueError, says="total_length is 4")

for op in ("alpha_dropout", "feature_alpha_dropout"):
    no_truth(op, "test_alpha_dropout.py")
    wrong(op, a(2, 3), 1.5, True, error=ValueError, says="probability")
    wrong(op, np.arange(6).reshape(2, 3), 0.5, True, error=TypeError, says="floating")
wrong("feature_alpha_dropout", a(3), 0.5, True, error=ValueError, says="2 axes")
