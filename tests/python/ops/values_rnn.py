"""Recurrent layers step by step."""

import numpy as np
from op_table import ALL_FLOATS, a, i, row, wrong


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def cell(mode):
    def f(x, h, *rest):
        c = rest[0] if mode == "lstm" else None
        w_ih, w_hh, *biases = rest[mode == "lstm" :]
        biases = [0 if b is None else b for b in biases] + [0] * (2 - len(biases))
        gx, gh = x @ w_ih.T + biases[0], h @ w_hh.T + biases[1]
        if mode == "lstm":
            i_, f_, g, o = np.split(gx + gh, 4, -1)
            c = sigmoid(f_) * c + sigmoid(i_) * np.tanh(g)
            return sigmoid(o) * np.tanh(c), c
        if mode == "gru":
            (xr, xz, xn), (hr, hz, hn) = np.split(gx, 3, -1), np.split(gh, 3, -1)
            z = sigmoid(xz + hz)
            return (1 - z) * np.tanh(xn + sigmoid(xr + hr) * hn) + z * h
        return np.tanh(gx + gh) if mode == "tanh" else np.maximum(gx + gh, 0)

    return f


def layers(mode):
    def f(tensors, has_biases, num_layers, dropout, train, bidirectional, batch_first):
        x, states, rest = (
            tensors[0],
            [tensors[1:2], tensors[1:3]][mode == "lstm"],
            list(tensors[2 + (mode == "lstm") :]),
        )
        if x.ndim == 2:
            lifted = [x[:, None]] + [s[:, None] for s in states] + rest
            return [t[:, 0] for t in f(lifted, has_biases, num_layers, dropout, train, bidirectional, False)]
        x = x.swapaxes(0, 1) if batch_first else x
        last = []
        for layer in range(num_layers):
            sides = []
            for way in range(2 if bidirectional else 1):
                n = 4 if has_biases else 2
                w, rest = rest[:n], rest[n:]
                now = tuple(s[layer * (2 if bidirectional else 1) + way] for s in states)
                out = [None] * len(x)
                for t in reversed(range(len(x))) if way else range(len(x)):
                    now = cell(mode)(x[t], *now, *w)
                    now = now if isinstance(now, tuple) else (now,)
                    out[t] = now[0]
                sides.append(np.stack(out))
                last.append(now)
            x = np.concatenate(sides, -1)
        return [x.swapaxes(0, 1) if batch_first else x, *(np.stack(s) for s in zip(*last))]

    return f


def tensors(mode, gates, x, batch, size, units, num_layers=1, ways=1, biases=True):
    state = a(num_layers * ways, batch, units, low=-1, high=1) if batch else a(num_layers * ways, units, low=-1, high=1)
    list_ = [a(*x), state] + ([state[:, ::-1]] if mode == "lstm" else [])
    for layer in range(num_layers):
        for _ in range(ways):
            inner = units * ways if layer else size
            list_ += [a(gates * units, inner, low=-1, high=1), a(gates * units, units, low=-1, high=1)]
            list_ += [a(gates * units, low=-1, high=1)] * 2 if biases else []
    return [np.ascontiguousarray(t) for t in list_]


for op, mode, gates in (("lstm", "lstm", 4), ("gru", "gru", 3), ("rnn_tanh", "tanh", 1), ("rnn_relu", "relu", 1)):
    f = layers(mode)
    row(op, f, tensors(mode, gates, (4, 3, 5), 3, 5, 6), True, 1, 0.0, False, False, False, dtypes=ALL_FLOATS)
    row(op, f, tensors(mode, gates, (4, 3, 5), 3, 5, 6, 2, 1, False), False, 2, 0.0, True, False, False, rtol=1e-5)
    row(op, f, tensors(mode, gates, (3, 4, 5), 3, 5, 6, 2, 2), True, 2, 0.0, False, True, True, rtol=1e-5)
    row(op, f, tensors(mode, gates, (4, 5), 0, 5, 6, 1, 2), True, 1, 0.0, False, True, False, rtol=1e-5)
    row(op, f, tensors(mode, gates, (1, 2, 3), 2, 3, 17), True, 1, 0.5, True, False, False, rtol=1e-5)
    good = tensors(mode, gates, (4, 3, 5), 3, 5, 6)
    rest = (True, 1, 0.0, False, False, False)
    wrong(op, good[:-1], *rest, error=ValueError, says="tensors were passed")
    wrong(op, good, True, 0, *rest[2:], error=ValueError, says="num_layers")
    wrong(op, good, True, 1, 1.5, *rest[3:], error=ValueError, says="probability")
    wrong(op, [a(4, 3, 4), *good[1:]], *rest, error=ValueError, says="weight_ih has shape")
    wrong(op, [a(4, 2, 5), *good[1:]], *rest, error=ValueError, says="h0 has shape")
    wrong(op, [a(0, 3, 5), *good[1:]], *rest, error=ValueError, says="no steps")
    wrong(op, [i(4, 3, 5), *good[1:]], *rest, error=TypeError, says="floating")
    one = [good[0][0], *(s[0] for s in good[1 : 2 + (mode == "lstm")]), *good[2 + (mode == "lstm") :]]
    row(f"{op}_cell", cell(mode), *one, dtypes=ALL_FLOATS)
    row(f"{op}_cell", cell(mode), *one[:-2])
    row(f"{op}_cell", cell(mode), *(t[0] for t in one[:-4]), *one[-4:])
    wrong(f"{op}_cell", one[0], one[1][:2], *one[2:], error=ValueError, says="hx has shape")
    wrong(f"{op}_cell", one[0][:, :2], *one[1:], error=ValueError, says="weight_ih has shape")
    wrong(f"{op}_cell", good[0], *one[1:], error=ValueError, says="takes")
    wrong(f"{op}_cell", i(3, 5), *one[1:], error=TypeError, says="floating")
