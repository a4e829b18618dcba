"""Attention against softmax(q k) v in NumPy."""

import numpy as np
from op_table import ALL_FLOATS, a, i, m, row, wrong


def attention(
    q, k, v, mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False, window=0, document_ids=None
):
    if enable_gqa:
        k, v = (np.repeat(t, q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    s = q @ np.swapaxes(k, -1, -2) * (1 / np.sqrt(q.shape[-1]) if scale is None else scale)
    see = np.tri(*s.shape[-2:], dtype=bool) if is_causal else np.ones(s.shape[-2:], bool)
    if window:
        see &= ~np.tri(*s.shape[-2:], k=-window, dtype=bool)
    if document_ids is not None:
        see = see & (document_ids[:, None, :, None] == document_ids[:, None, None, :])
    s = np.where(see, s, -np.inf)
    if mask is not None:
        s = np.where(mask, s, -np.inf) if mask.dtype == bool else s + mask
    e = np.exp(s - np.maximum(s.max(-1, keepdims=True, initial=-np.inf), -1e30))
    total = e.sum(-1, keepdims=True)
    return np.where(total > 0, e / np.where(total > 0, total, 1), 0) @ v


op = "scaled_dot_product_attention"
q, k, v = a(2, 3, 5, 4), a(2, 3, 7, 4), a(2, 3, 7, 6)
for causal in (False, True):
    row(op, attention, q, k, v, None, 0.0, causal, dtypes=ALL_FLOATS)
    # More than a block of queries and of keys.
    row(op, attention, a(1, 2, 131, 16), a(1, 2, 301, 16), a(1, 2, 301, 16), is_causal=causal, rtol=1e-5)
    row(op, attention, a(1, 1, 301, 16), a(1, 1, 131, 16), a(1, 1, 131, 16), is_causal=causal, rtol=1e-5)
# One query; several heads for one of the keys.
row(op, attention, a(2, 3, 1, 16), a(2, 3, 301, 16), a(2, 3, 301, 16), rtol=1e-5)
row(op, attention, a(1, 12, 2, 16), a(1, 2, 201, 16), a(1, 2, 201, 16), m(201), enable_gqa=True, rtol=1e-5)
row(op, attention, q, k, v, scale=0.3)
for mask in (m(5, 7), m(7), m(2, 1, 5, 7), m(2, 3, 1, 7), m(1, 5, 1), a(5, 7), a(2, 3, 5, 7), a(2, 1, 1, 7)):
    row(op, attention, q, k, v, mask)
row(op, attention, a(1, 2, 70, 8), a(1, 2, 200, 8), a(1, 2, 200, 8), m(70, 200), rtol=1e-5)
none = m(5, 7)
none[1] = False
row(op, attention, q, k, v, none)
row(op, attention, q, k, v, np.where(none, 0.0, -np.inf))
row(op, attention, a(2, 6, 5, 4), a(2, 2, 7, 4), a(2, 2, 7, 3), enable_gqa=True)
row(op, attention, a(2, 6, 5, 4), a(2, 2, 7, 4), a(2, 2, 7, 3), m(2, 6, 5, 7), enable_gqa=True)
row(op, attention, a(5, 4), a(7, 4), a(7, 3))
row(op, attention, a(2, 5, 4), a(2, 7, 4), a(2, 7, 3), m(2, 5, 7))
row(op, attention, a(2, 2, 3, 5, 4), a(2, 2, 3, 7, 4), a(2, 2, 3, 7, 3), m(2, 2, 1, 5, 7))
row(op, attention, a(2, 3, 5, 4), a(1, 3, 7, 4), a(7, 3))
row(op, attention, a(2, 3, 0, 4), a(2, 3, 7, 4), a(2, 3, 7, 3))
row(op, attention, a(2, 3, 5, 4), a(2, 3, 0, 4), a(2, 3, 0, 3))
# Windows and documents, of one block and of several; padding goes with them.
ids = i(2, 5) % 2
for window in (1, 3, 9):
    row(op, attention, q, q, q, None, 0.0, True, window=window, dtypes=ALL_FLOATS)
    row(op, attention, q, q, q, m(2, 1, 1, 5), 0.0, True, window=window, document_ids=ids)
row(op, attention, q, q, q, m(5), 0.0, True)
row(op, attention, q, q, q, document_ids=ids[:1].astype("int32"))
row(op, attention, q, q, q, m(5, 5), document_ids=ids)
long = a(2, 2, 301, 8)
for window in (1, 63, 64, 65, 129, 400):
    row(op, attention, long, long, long, None, 0.0, True, window=window, rtol=1e-5)
packed = np.repeat(np.array([[4, 1, 4, 0, 2, 3, 9]] * 2), 43, axis=1)
for causal in (False, True):
    row(op, attention, long, long, long, None, 0.0, causal, document_ids=packed, rtol=1e-5)
wrong(op, q, q, q, window=2, error=ValueError, says="is_causal")
wrong(op, q, q, q, None, 0.0, True, window=-2, error=ValueError, says="window is -2")
wrong(op, q, q, q, document_ids=ids[:, :4], error=ValueError, says="document_ids are")
wrong(op, q, k, v, document_ids=ids, error=ValueError, says="in common")
wrong(op, q, q, q, document_ids=a(2, 5), error=TypeError, says="integers")
wrong(op, a(5, 4), a(7, 3), a(7, 4), error=ValueError, says="do not fit")
wrong(op, a(5, 4), a(7, 4), a(6, 4), error=ValueError, says="do not fit")
wrong(op, a(4), a(4), a(4), error=ValueError, says="axes")
wrong(op, a(2, 5, 4), a(3, 7, 4), a(3, 7, 4), error=ValueError, says="broadcast|shapes")
wrong(op, i(5, 4), i(7, 4), i(7, 4), error=TypeError, says="floating")
wrong(op, a(5, 4), a(7, 4), a(7, 4), m(4, 7), error=ValueError, says="broadcast|shapes")
wrong(op, a(5, 4), a(7, 4), a(7, 4), i(5, 7), error=TypeError, says="bool or floating")
wrong(op, a(5, 4), a(7, 4), a(7, 4), m(5, 7), 0.0, True, error=ValueError, says="both given")
wrong(op, a(5, 4), a(7, 4), a(7, 4), None, 1.5, error=ValueError, says="probability")
wrong(op, a(2, 5, 5, 4), a(2, 2, 7, 4), a(2, 2, 7, 4), enable_gqa=True, error=ValueError, says="divides")
