"""A GPT of bytes, written once for one rank and for many.

The placement has two rank dimensions: data-parallel and tensor-parallel. Activations are split by rows over the first;
attention heads and the hidden layer of each block are split over the second. Every layout stands in `Layout`; what has to
be sent follows from it.
"""
from typing import NamedTuple

import numpy as np

import holon as flow
from holon import nn

B, S = flow.sbp.broadcast, flow.sbp.split


class Layout(NamedTuple):
    placement: flow.placement
    rows: tuple = (S(0), B)    # inputs: each data-parallel group has its rows
    whole: tuple = (B, B)      # embeddings, norms
    column: tuple = (B, S(0))  # weights [out, in] by their outputs
    row: tuple = (B, S(1))     # weights [out, in] by their inputs

    @staticmethod
    def over(dp, tp, device="cpu"):
        return Layout(flow.placement(device, np.arange(dp * tp).reshape(dp, tp).tolist()))


class Attention(nn.Module):
    def __init__(self, width, heads, layout):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, placement=layout.placement, sbp=layout.column)
        self.out = nn.Linear(width, width, placement=layout.placement, sbp=layout.row)

    def forward(self, x, mask):
        b, t, width = x.shape
        # Outputs are ordered by head first, so that a split by heads leaves q, k and v of a head together.
        q, k, v = self.qkv(x).reshape(b, t, self.heads, -1).transpose(1, 2).chunk(3, -1)
        scores = flow.matmul(q * (width // self.heads) ** -0.5, k.transpose(2, 3))
        weights = flow.softmax(scores.masked_fill(mask, float("-inf")), -1)
        return self.out(flow.matmul(weights, v).transpose(1, 2).reshape(b, t, width))


class Block(nn.Module):
    def __init__(self, width, heads, layout):
        super().__init__()
        placement = layout.placement
        self.norm1 = nn.LayerNorm(width, placement=placement, sbp=layout.whole)
        self.attention = Attention(width, heads, layout)
        self.norm2 = nn.LayerNorm(width, placement=placement, sbp=layout.whole)
        self.up = nn.Linear(width, 4 * width, placement=placement, sbp=layout.column)
        self.down = nn.Linear(4 * width, width, placement=placement, sbp=layout.row)

    def forward(self, x, mask):
        x = x + self.attention(self.norm1(x), mask)
        return x + self.down(flow.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, layers, width, heads, length, layout, vocabulary=256):
        super().__init__()
        self.length, self.layout = length, layout
        where = {"placement": layout.placement, "sbp": layout.whole}
        self.tokens = nn.Embedding(vocabulary, width, **where)
        self.positions = nn.Parameter(flow.zeros(length, width, **where))
        self.blocks = nn.ModuleList(Block(width, heads, layout) for _ in range(layers))
        self.norm = nn.LayerNorm(width, **where)
        self.head = nn.Linear(width, vocabulary, bias=False, **where)
        self.register_buffer("future", flow.ones(length, length, dtype=flow.bool, **where).triu(1), persistent=False)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.ndim == 2:
                last = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * layers) ** 0.5 if last else 0.02)

    def forward(self, tokens):
        """Returns the scores of the bytes that follow each of tokens [rows, length]."""
        x = self.tokens(tokens) + self.positions
        for block in self.blocks:
            x = block(x, self.future)
        return self.head(self.norm(x))

    def place(self, array, sbp=None):
        """Returns an array, which every rank has alike, as a global tensor: by rows, unless sbp says otherwise."""
        return flow.tensor(array, placement=self.layout.placement, sbp=sbp or self.layout.rows)

    def loss(self, seen, following):
        logits = self(self.place(seen))
        return nn.functional.cross_entropy(logits.flatten(0, 1), self.place(following).flatten())

    def write(self, start, count, seed, temperature=0.8):
        """Returns start and count bytes more, drawn one by one; every rank draws the same."""
        rng, text = np.random.default_rng(seed), list(start)
        for _ in range(count):
            seen = text[-self.length:]
            padded = np.array([seen + [0] * (self.length - len(seen))])  # one shape; the padding lies in the future
            scores = self(self.place(padded, self.layout.whole))[0, len(seen) - 1].numpy().astype(np.float64) / temperature
            chances = np.exp(scores - scores.max())
            text.append(int(rng.choice(256, p=chances / chances.sum())))
        return bytes(text)
