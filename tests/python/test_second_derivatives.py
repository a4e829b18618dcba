"""Second derivatives of layers, against differences of first ones; first ones with and without create_graph."""

import numpy as np
import pytest

import holon as flow
from holon import nn
from holon.autograd import grad

F = nn.functional


def tensor(*shape, low=-1.0, high=1.0):
    n = int(np.prod(shape))
    values = low + (high - low) * np.random.default_rng(n).permutation((np.arange(n) + 0.5) / n)
    return flow.tensor(values.reshape(shape), dtype=flow.float64)


def attention(**options):
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options)


def attention_with_dropout(q, k, v):
    flow.manual_seed(3)
    return F.scaled_dot_product_attention(q, k, v, dropout_p=0.4)


def recurrent(kind, cell=False, **options):
    before = flow.initial_seed()  # other tests' draws begin with it
    flow.manual_seed(1)
    layer = kind(3, 4, dtype=flow.float64, **options)
    flow.manual_seed(before)

    def run(x, *states):
        out = layer(x, *([states if len(states) > 1 else states[0]] if states else []))
        if kind is nn.GRUCell or kind is nn.RNNCell:
            return out
        if kind is nn.LSTMCell:
            return flow.cat([out[0], out[1]], 1)
        last = out[1] if isinstance(out[1], tuple) else (out[1],)
        return flow.cat([out[0].reshape(-1), *(s.reshape(-1) for s in last)])

    run.parameters = list(layer.parameters())
    return run


def batch_norm_in_training(x, w, b):
    return F.batch_norm(x, flow.zeros(3, dtype=flow.float64), flow.ones(3, dtype=flow.float64), w, b, training=True)


qkv = [tensor(2, 4, 5, 3), tensor(2, 4, 6, 3), tensor(2, 4, 6, 2)]
see = flow.tensor(np.random.default_rng(0).random((2, 1, 5, 6)) > 0.3)
CASES = {
    "layer_norm": (lambda x, w, b: F.layer_norm(x, [3, 4], w, b), tensor(2, 3, 4), tensor(3, 4), tensor(3, 4, high=2)),
    "layer_norm without weight": (lambda x: F.layer_norm(x, [4]), tensor(2, 3, 4)),
    "rms_norm": (lambda x, w: F.rms_norm(x, [4], w), tensor(2, 3, 4), tensor(4)),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), tensor(2, 4, 3), tensor(4), tensor(4, high=2)),
    "instance_norm": (lambda x, w, b: F.instance_norm(x, weight=w, bias=b), tensor(2, 3, 5), tensor(3), tensor(3)),
    "batch_norm in training": (batch_norm_in_training, tensor(4, 3, 2), tensor(3), tensor(3, high=2)),
    "batch_norm": (
        lambda x, w, b: F.batch_norm(x, tensor(3), tensor(3, low=0.5), w, b),
        tensor(4, 3, 2),
        tensor(3),
        tensor(3, high=2),
    ),
    "attention": (attention(), *qkv),
    "causal attention": (attention(is_causal=True, scale=0.7), *qkv),
    "attention with a mask": (attention(attn_mask=see), *qkv),
    "attention with numbers as a mask": (attention(attn_mask=tensor(5, 6)), *qkv),
    "attention with shared heads": (
        attention(enable_gqa=True),
        tensor(2, 4, 5, 3),
        tensor(2, 2, 6, 3),
        tensor(2, 2, 6, 2),
    ),
    "attention with dropout": (attention_with_dropout, *qkv),
    "max_pool1d": (lambda x: F.max_pool1d(x * x, 3, 2), tensor(2, 3, 9)),
    "max_pool2d": (lambda x: F.max_pool2d(x * x, 2, 1, 1), tensor(2, 2, 4, 5)),
    "max_pool3d": (lambda x: F.max_pool3d(x * x, 2), tensor(1, 2, 4, 4, 5)),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x * x, 2), tensor(2, 2, 4, 5)),
    "lstm": (recurrent(nn.LSTM, num_layers=2, bidirectional=True), tensor(4, 2, 3)),
    "gru": (recurrent(nn.GRU, bidirectional=True), tensor(4, 2, 3)),
    "rnn": (recurrent(nn.RNN), tensor(4, 2, 3), tensor(1, 2, 4)),
    "lstm cell": (recurrent(nn.LSTMCell), tensor(2, 3), tensor(2, 4), tensor(2, 4)),
    "gru cell": (recurrent(nn.GRUCell), tensor(2, 3), tensor(2, 4)),
    "rnn cell": (recurrent(nn.RNNCell), tensor(2, 3), tensor(2, 4)),
    "grid_sample": (lambda x, g: F.grid_sample(x, g), tensor(2, 2, 4, 4), tensor(2, 3, 3, 2, low=-0.9, high=0.9)),
    "bicubic grid_sample": (
        lambda x, g: F.grid_sample(x, g, "bicubic", "border", True),
        tensor(2, 2, 4, 4),
        tensor(2, 3, 3, 2, low=-0.9, high=0.9),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_against_differences(name):
    function, *values = CASES[name]
    values = [v.detach().clone() for v in values]
    own = getattr(function, "parameters", [])
    leaves = [v.requires_grad_() for v in values] + own
    with flow.no_grad():
        y = function(*values)
    weights = tensor(*y.shape)
    directions = [tensor(*v.shape) for v in leaves]

    def first(create_graph=False):
        return grad((function(*values).sin() * weights).sum(), leaves, create_graph=create_graph)

    recorded, plain = first(True), first()
    for a, b in zip(recorded, plain):
        np.testing.assert_allclose(a.detach().numpy(), b.numpy(), rtol=1e-9, atol=1e-12)
    second = grad(sum((g * d).sum() for g, d in zip(recorded, directions)), leaves)
    h, moved = 1e-6, []
    for sign in (1, -2):
        with flow.no_grad():
            for v, d in zip(leaves, directions):
                v.add_(d, alpha=sign * h)
        moved.append(first())
    with flow.no_grad():
        for v, d in zip(leaves, directions):
            v.add_(d, alpha=h)
    # The Hessian is symmetric: its product with the directions is the difference of gradients along them.
    for up, down, s in zip(*moved, second):
        want = (up.numpy() - down.numpy()) / (2 * h)
        np.testing.assert_allclose(s.numpy(), want, rtol=2e-5, atol=2e-7 * max(1, np.abs(want).max()))


def test_queries_that_see_nothing():
    hidden = flow.tensor(np.zeros((5, 6), bool))
    q, k, v = (t.detach().clone().requires_grad_() for t in qkv)
    for mask in (hidden, flow.full((5, 6), float("-inf"), dtype=flow.float64)):
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        for g in grad(y.sum(), [q, k, v], create_graph=True):
            assert not g.detach().numpy().any()


def test_the_same_on_two_ranks():
    def penalty(layer, x):
        (g,) = grad(layer(x).sin().sum(), x, create_graph=True)
        return (g * g).sum()

    flow.manual_seed(0)
    norm = nn.BatchNorm2d(3, dtype=flow.float64)
    x = tensor(4, 3, 2, 2).requires_grad_()
    penalty(norm, x).backward()
    want = x.grad.numpy(), norm.weight.grad.numpy()
    values = x.detach().numpy()

    def run(rank):
        placement = flow.placement("cpu", [0, 1])
        other = nn.BatchNorm2d(3, dtype=flow.float64).to_global(placement, flow.sbp.broadcast)
        x = flow.tensor(values).to_global(placement, flow.sbp.broadcast).to_global(placement, flow.sbp.split(0))
        x = x.detach().requires_grad_()
        penalty(other, x).backward()
        return [t.to_global(placement, flow.sbp.broadcast).to_local().numpy() for t in (x.grad, other.weight.grad)]

    for got in flow.run_ranks(2, run):
        for a, b in zip(got, want):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
