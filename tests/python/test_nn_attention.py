"""Attention and transformers: their results are those of plain NumPy, their state is PyTorch's."""

import math

import numpy as np
import pytest
from harness.arrays import array, same, tensor

import holon
from holon import nn

F = nn.functional


def plain_attention(layer, query, key, value, allowed=None):
    """On arrays [n, length, width]; allowed broadcasts to [n, heads, queries, keys]."""
    state = {k: v.numpy() for k, v in layer.state_dict().items()}
    if "in_proj_weight" in state:
        weights = np.split(state["in_proj_weight"], 3)
    else:
        weights = [state[f"{n}_proj_weight"] for n in "qkv"]
    biases = np.split(state.get("in_proj_bias", np.zeros(3 * layer.embed_dim)), 3)
    n, heads, width = len(query), layer.num_heads, layer.head_dim
    q, k, v = (
        (x @ w.T + b).reshape(n, -1, heads, width).swapaxes(1, 2)
        for x, w, b in zip((query, key, value), weights, biases)
    )
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(width)
    if allowed is not None:
        scores = np.where(allowed, scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    y = (p @ v).swapaxes(1, 2).reshape(n, -1, layer.embed_dim)
    return y @ state["out_proj.weight"].T + state.get("out_proj.bias", 0), p.mean(1)


@pytest.mark.parametrize("options", [{}, {"packed": False}, {"bias": False}, {"kdim": 3, "vdim": 5}], ids=str)
@pytest.mark.parametrize("need_weights", [False, True])
def test_multihead_attention(options, need_weights):
    layer = nn.MultiheadAttention(6, 2, batch_first=True, **options)
    q, k, v = array(2, 5, 6), array(2, 4, layer.kdim, seed=1), array(2, 4, layer.vdim, seed=2)
    expected, weights = plain_attention(layer, q, k, v)
    result, found = layer(*map(holon.tensor, (q, k, v)), need_weights=need_weights)
    same(result, expected, 1e-5)
    assert found is None if not need_weights else same(found, weights, 1e-5) is None
    layer.batch_first = False
    turned = layer(*(holon.tensor(x.swapaxes(0, 1).copy()) for x in (q, k, v)), need_weights=need_weights)[0]
    same(turned, expected.swapaxes(0, 1), 1e-5)
    same(layer(*(holon.tensor(x[1]) for x in (q, k, v)), need_weights=need_weights)[0], expected[1], 1e-5)


@pytest.mark.parametrize("need_weights", [False, True])
def test_multihead_attention_masks(need_weights):
    layer, x = nn.MultiheadAttention(6, 2, batch_first=True), array(2, 5, 6)
    t = holon.tensor(x)
    causal, padding = np.tril(np.ones((5, 5), bool)), np.array([[False] * 5, [False, False, False, True, True]])
    seen = ~padding[:, None, None, :]
    added = np.where(causal, 0, -np.inf).astype(np.float32)
    for options, allowed in [
        ({"is_causal": True}, causal),
        ({"attn_mask": holon.tensor(~causal)}, causal),
        ({"attn_mask": holon.tensor(added)}, causal),
        ({"key_padding_mask": holon.tensor(padding)}, seen),
        ({"key_padding_mask": holon.tensor(padding), "is_causal": True}, causal & seen),
        ({"attn_mask": holon.tensor(np.stack([~causal] * 4))}, causal),
    ]:
        expected, weights = plain_attention(layer, x, x, x, allowed)
        result, found = layer(t, t, t, need_weights=need_weights, **options)
        same(result, expected, 1e-5)
        if need_weights:
            same(found, weights, 1e-5)
    with pytest.raises(ValueError, match=r"key_padding_mask has shape \[2, 4\]"):
        layer(t, t, t, key_padding_mask=holon.zeros(2, 4, dtype=holon.bool))
    with pytest.raises(ValueError, match="attn_mask has shape"):
        layer(t, t, t, attn_mask=holon.zeros(4, 4, dtype=holon.bool))
    with pytest.raises(ValueError, match="does not divide into 4 heads"):
        nn.MultiheadAttention(6, 4)


def test_packed_and_separate_weights_load_into_each_other():
    one, other = nn.MultiheadAttention(4, 2), nn.MultiheadAttention(4, 2, packed=False)
    x = tensor(3, 2, 4)
    other.load_state_dict(one.state_dict())
    same(other(x, x, x)[0], one(x, x, x)[0], 1e-5)
    nn.init.normal_(other.q_proj_weight)
    one.load_state_dict(other.state_dict())
    same(other(x, x, x)[0], one(x, x, x)[0], 1e-5)


def test_transformer():
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    x = tensor(2, 3, 4)
    y = layer.norm1(x + layer.self_attn(x, x, x)[0])
    same(layer(x), layer.norm2(y + layer.linear2(F.relu(layer.linear1(y)))), 1e-5)
    first = nn.TransformerEncoderLayer(4, 2, 8, 0.0, "gelu", batch_first=True, norm_first=True)
    n = first.norm1(x)
    y = x + first.self_attn(n, n, n, is_causal=True)[0]
    same(first(x, is_causal=True), y + first.linear2(F.gelu(first.linear1(first.norm2(y)))), 1e-5)
    model = nn.Transformer(4, 2, 2, 2, 8, dropout=0.0)
    src, tgt = tensor(5, 2, 4), tensor(3, 2, 4, seed=1)
    mask = model.generate_square_subsequent_mask(3)
    assert mask.tolist()[0] == [0, -math.inf, -math.inf]
    same(model(src, tgt, tgt_mask=mask), model(src, tgt, tgt_is_causal=True), 1e-5)
    model(src, tgt, tgt_mask=mask).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    stack = nn.TransformerEncoder(layer, 2, nn.LayerNorm(4))
    assert stack.layers[0].linear1.weight is not stack.layers[1].linear1.weight
    same(stack(x), stack.norm(layer(layer(x))), 1e-5)
    with pytest.raises(ValueError, match="activation is 'swish'"):
        nn.TransformerEncoderLayer(4, 2, activation="swish")
