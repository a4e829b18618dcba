"""Recurrent layers and cells: their results are those of plain NumPy, their state is PyTorch's."""

import pickle

import numpy as np
import pytest
from harness.arrays import array, same, tensor

import holon
from holon import nn


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def plain_step(kind, x, h, c, w_ih, w_hh, b_ih, b_hh):
    a, b = x @ w_ih.T + b_ih, h @ w_hh.T + b_hh
    if kind == "LSTM":
        i, f, g, o = np.split(a + b, 4, -1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        return sigmoid(o) * np.tanh(c), c
    if kind == "GRU":
        (ar, az, an), (br, bz, bn) = np.split(a, 3, -1), np.split(b, 3, -1)
        z = sigmoid(az + bz)
        return (1 - z) * np.tanh(an + sigmoid(ar + br) * bn) + z * h, c
    return np.tanh(a + b), c


def plain_recurrent(layer, kind, x):
    state, size = {k: v.numpy() for k, v in layer.state_dict().items()}, layer.hidden_size
    hs, cs = [], []
    for k in range(layer.num_layers):
        sides = []
        for suffix in ("", "_reverse") if layer.bidirectional else ("",):
            weights = [
                state.get(f"{n}_l{k}{suffix}", np.float32(0)) for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            ]
            h = c = np.zeros((x.shape[1], size), np.float32)
            steps = list(range(len(x)))[:: -1 if suffix else 1]
            y = np.zeros((*x.shape[:2], size), np.float32)
            for t in steps:
                h, c = plain_step(kind, x[t], h, c, *weights)
                y[t] = h
            sides.append(y)
            hs.append(h)
            cs.append(c)
        x = np.concatenate(sides, -1)
    return x, np.stack(hs), np.stack(cs)


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False, "num_layers": 2}], ids=str
)
def test_recurrent_layers(kind, options):
    layer, x = getattr(nn, kind)(3, 4, **options), array(5, 2, 3)
    y, h, c = plain_recurrent(layer, kind, x)
    found, states = layer(holon.tensor(x))
    same(found, y, 1e-5)
    same(states if kind == "LSTM" else (states,), (h, c) if kind == "LSTM" else (h,), 1e-5)
    layer.batch_first = True
    same(layer(holon.tensor(x.swapaxes(0, 1).copy()))[0], y.swapaxes(0, 1), 1e-5)
    one, one_state = layer(holon.tensor(x[:, 1]))
    same(one, y[:, 1], 1e-5)
    assert (one_state[0] if kind == "LSTM" else one_state).shape == h[:, 1].shape
    given = tuple(holon.tensor(s) for s in (h, c)) if kind == "LSTM" else holon.tensor(h)
    layer.batch_first = False
    assert np.abs(layer(holon.tensor(x), given)[0].detach().numpy() - y).max() > 1e-3
    assert max(np.abs(p.detach().numpy()).max() for p in layer.parameters()) <= 0.5
    found.square().sum().backward()
    assert all(np.isfinite(p.grad.numpy()).all() for p in layer.parameters())


def test_recurrent_state_and_repr():
    assert (
        repr(nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True))
        == "LSTM(3, 4, num_layers=2, batch_first=True, bidirectional=True)"
    )
    assert (
        repr(nn.GRU(3, 4, bias=False, dropout=0.5)) == "GRU(3, 4, bias=False, dropout=0.5)"
        and repr(nn.RNN(3, 4)) == "RNN(3, 4)"
    )
    shapes = {n: tuple(v.shape) for n, v in nn.LSTM(3, 4, 2, bidirectional=True).state_dict().items()}
    assert (
        shapes["weight_ih_l0"] == (16, 3)
        and shapes["weight_ih_l1_reverse"] == (16, 8)
        and shapes["bias_hh_l1"] == (16,)
    )
    assert (
        list(shapes)[:5] == ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0", "weight_ih_l0_reverse"]
        and len(shapes) == 16
    )
    assert pickle.loads(pickle.dumps(nn.GRU(3, 4)))(tensor(5, 2, 3))[0].shape == (5, 2, 4)
    for wrong in (lambda: nn.RNN(3, 4, nonlinearity="gelu"), lambda: nn.LSTM(3, 0), lambda: nn.GRU(3, 4, dropout=2)):
        with pytest.raises(ValueError):
            wrong()
    with pytest.raises(ValueError, match="x must be"):
        nn.LSTM(3, 4)(tensor(3))


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_cells(kind):
    cell = getattr(nn, kind + "Cell")(3, 4)
    assert repr(cell) == f"{kind}Cell(3, 4)"
    x, h, c = array(2, 3), array(2, 4, seed=1), array(2, 4, seed=2)
    weights = [p.detach().numpy() for p in (cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)]
    expected = plain_step(kind, x, h, c, *weights)
    hx = (holon.tensor(h), holon.tensor(c)) if kind == "LSTM" else holon.tensor(h)
    found = cell(holon.tensor(x), hx)
    same(found if kind == "LSTM" else (found,), expected if kind == "LSTM" else expected[:1], 1e-5)
    zeros = cell(holon.tensor(x[0]))
    same(zeros[0] if kind == "LSTM" else zeros, plain_step(kind, x[0], 0 * h[0], 0 * c[0], *weights)[0], 1e-5)
    relu = nn.RNNCell(3, 4, nonlinearity="relu")
    assert relu(tensor(2, 3)).detach().numpy().min() >= 0 and repr(relu).endswith("nonlinearity=relu)")
