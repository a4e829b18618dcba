"""A transformer block on a 2-D grid of ranks, data parallel x tensor parallel, by nd-sbp: values and gradients are
those of the same block in NumPy-like local tensors."""

import math

import numpy as np
import oneflow as flow
from oneflow import nn

B, S = flow.sbp.broadcast, flow.sbp.split
HIDDEN, HEADS, BATCH, LENGTH = 16, 4, 4, 6


def grid():
    n = flow.env.get_world_size()
    tensor = 2 if n % 2 == 0 else 1
    return flow.placement("cpu", ranks=np.arange(n).reshape(n // tensor, tensor).tolist())


def column_linear(i, o, p):
    return (
        nn.Linear(i, o).to_global(placement=p, sbp={"weight": [B, S(0)], "bias": [B, S(0)]}) if p else nn.Linear(i, o)
    )


def row_linear(i, o, p):
    return nn.Linear(i, o).to_global(placement=p, sbp={"weight": [B, S(1)], "bias": [B, B]}) if p else nn.Linear(i, o)


class Block(nn.Module):
    """Weights are given, so that the parallel block and the local one are the same function."""

    def __init__(self, weights, placement=None):
        super().__init__()
        self.placement = placement

        def param(name, sbp):
            value = weights[name]
            if placement is None:
                return nn.Parameter(flow.tensor(value))
            return nn.Parameter(flow.tensor(value, placement=placement, sbp=sbp))

        self.qkv = param("qkv", [B, S(1)])
        self.qkv_bias = param("qkv_bias", [B, S(0)])
        self.out = param("out", [B, S(0)])
        self.out_bias = param("out_bias", [B, B])
        self.up = param("up", [B, S(1)])
        self.up_bias = param("up_bias", [B, S(0)])
        self.down = param("down", [B, S(0)])
        self.down_bias = param("down_bias", [B, B])
        self.ln1 = nn.LayerNorm(HIDDEN)
        self.ln2 = nn.LayerNorm(HIDDEN)
        if placement is not None:
            self.ln1.to_global(placement, [B, B])
            self.ln2.to_global(placement, [B, B])

    def again(self, x):
        """The hidden state as it is between layers."""
        return x if self.placement is None else x.to_global(sbp=[S(0), B])

    def forward(self, x):
        b, length, _ = x.size()
        h = self.ln1(x)
        # heads lie side by side, each with its query, key and value, so that a split of the columns is one of the heads
        qkv = flow.matmul(h, self.qkv) + self.qkv_bias
        if self.placement is not None:
            assert qkv.sbp == (S(0), S(2)), qkv.sbp
        qkv = qkv.view(b, length, HEADS, 3 * HIDDEN // HEADS).permute(0, 2, 1, 3)
        q, k, v = flow.chunk(qkv, chunks=3, dim=-1)
        scores = flow.matmul(q, k, transpose_b=True, alpha=1.0 / math.sqrt(HIDDEN // HEADS))
        mask = flow.ones_like(scores).tril()
        scores = scores * mask - 10000.0 * (1 - mask)
        context = flow.matmul(flow.softmax(scores, dim=-1), v).transpose(1, 2).flatten(2)
        x = x + self.again(flow.matmul(context, self.out)) + self.out_bias
        h = flow._C.fused_bias_add_gelu(flow.matmul(self.ln2(x), self.up), self.up_bias, axis=2)
        return x + self.again(flow.matmul(h, self.down)) + self.down_bias


def main():
    rng = np.random.default_rng(3)
    shapes = {
        "qkv": (HIDDEN, 3 * HIDDEN),
        "qkv_bias": (3 * HIDDEN,),
        "out": (HIDDEN, HIDDEN),
        "out_bias": (HIDDEN,),
        "up": (HIDDEN, 4 * HIDDEN),
        "up_bias": (4 * HIDDEN,),
        "down": (4 * HIDDEN, HIDDEN),
        "down_bias": (HIDDEN,),
    }
    weights = {name: (rng.standard_normal(s) / 4).astype(np.float32) for name, s in shapes.items()}
    data = rng.standard_normal((BATCH, LENGTH, HIDDEN)).astype(np.float32)
    placement = grid()
    assert placement.ranks.ndim == 2 and placement.hierarchy == placement.ranks.shape

    local, block = Block(weights), Block(weights, placement)
    x = flow.tensor(data, requires_grad=True)
    y = local(x)
    (y * y).mean().backward()

    gx = flow.tensor(data, placement=placement, sbp=[S(0), B], requires_grad=True)
    gy = block(gx)
    assert gy.sbp == (S(0), B) and gy.shape == (BATCH, LENGTH, HIDDEN)
    (gy * gy).mean().backward()

    np.testing.assert_allclose(gy.numpy(), y.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gx.grad.numpy(), x.grad.numpy(), rtol=1e-3, atol=1e-6)
    for (name, mine), (_, whole) in zip(block.named_parameters(), local.named_parameters()):
        assert mine.grad.sbp == mine.sbp, name
        np.testing.assert_allclose(mine.grad.numpy(), whole.grad.numpy(), rtol=1e-3, atol=1e-5, err_msg=name)
    # A rank holds its columns of the weights only.
    assert block.qkv.to_local().shape == (HIDDEN, 3 * HIDDEN // placement.hierarchy[1])

    m = column_linear(8, 12, placement)
    n = row_linear(12, 8, placement)
    z = flow.ones(BATCH, 8, placement=placement, sbp=[S(0), B])
    w = n(m(z))
    expected = (np.ones((BATCH, 8)) @ m.weight.numpy().T + m.bias.numpy()) @ n.weight.numpy().T + n.bias.numpy()
    np.testing.assert_allclose(w.numpy(), expected, rtol=1e-4, atol=1e-5)
    print("result", f"{(gy * gy).mean().item():.5f}")


if __name__ == "__main__":
    main()
