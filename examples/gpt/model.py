"""A GPT of bytes, written once for one rank and for many.

The blocks are shared out among the stages of a pipeline, each of which has ranks of its own. A stage's placement has
two rank dimensions: data-parallel and tensor-parallel. Activations are split by rows over the first; attention heads
and the hidden layer of each block are split over the second. Every layout is in `Layout`; what has to be sent
follows from it.
"""

from typing import NamedTuple

import numpy as np

import holon as flow
from holon import nn

B, S = flow.sbp.broadcast, flow.sbp.split


class Layout(NamedTuple):
    placement: flow.placement
    rows: tuple = (S(0), B)  # inputs: each data-parallel group has its rows
    whole: tuple = (B, B)  # embeddings, norms
    column: tuple = (B, S(0))  # weights [out, in] by their outputs
    row: tuple = (B, S(1))  # weights [out, in] by their inputs

    @staticmethod
    def over(dp, tp, stages=1, device="cpu"):
        """A layout for each stage of a pipeline."""
        return [
            Layout(flow.placement(device, ranks.tolist()))
            for ranks in np.arange(stages * dp * tp).reshape(stages, dp, tp)
        ]


def everywhere(x):
    """The whole tensor on every rank."""
    return x.to_global(flow.placement.all("cpu"), flow.sbp.broadcast)


class Attention(nn.Module):
    def __init__(self, width, heads, layout):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, placement=layout.placement, sbp=layout.column)
        self.out = nn.Linear(width, width, placement=layout.placement, sbp=layout.row)

    def forward(self, x):
        b, t, width = x.shape
        # Outputs are ordered by head first, so that a split by heads leaves q, k and v of a head together.
        q, k, v = self.qkv(x).reshape(b, t, self.heads, -1).transpose(1, 2).chunk(3, -1)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, width))


class Block(nn.Module):
    def __init__(self, width, heads, layout):
        super().__init__()
        self.layout, placement = layout, layout.placement
        self.norm1 = nn.LayerNorm(width, placement=placement, sbp=layout.whole)
        self.attention = Attention(width, heads, layout)
        self.norm2 = nn.LayerNorm(width, placement=placement, sbp=layout.whole)
        self.up = nn.Linear(width, 4 * width, placement=placement, sbp=layout.column)
        self.down = nn.Linear(4 * width, width, placement=placement, sbp=layout.row)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(flow.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """layouts: one for each stage of the pipeline."""

    def __init__(self, layers, width, heads, length, layouts, vocabulary=256):
        super().__init__()
        self.length, self.layouts = length, layouts
        first, last = ({"placement": layout.placement, "sbp": layout.whole} for layout in (layouts[0], layouts[-1]))
        self.tokens = nn.Embedding(vocabulary, width, **first)
        self.positions = nn.Parameter(flow.zeros(length, width, **first))
        self.blocks = nn.ModuleList(Block(width, heads, layouts[i * len(layouts) // layers]) for i in range(layers))
        self.norm = nn.LayerNorm(width, **last)
        self.head = nn.Linear(width, vocabulary, bias=False, **last)
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
            x = block(x.to_global(block.layout.placement))
        return self.head(self.norm(x))

    def stages(self):
        """Yields every part of the model with its stage's number."""
        yield self.tokens, 0
        for block in self.blocks:
            yield block, self.layouts.index(block.layout)
        yield from ((part, len(self.layouts) - 1) for part in (self.norm, self.head))

    def place(self, array, stage=0, sbp=None):
        """Returns an array, which every rank has alike, as a global tensor: by rows, unless sbp says otherwise."""
        return flow.tensor(array, placement=self.layouts[stage].placement, sbp=sbp or self.layouts[stage].rows)

    def pair(self, seen, following):
        """The first stage's input and what the last stage compares with."""
        return self.place(seen), self.place(following, -1)

    def loss(self, seen, following):
        """Of global tensors, as pair() makes them; on the last stage."""
        return nn.functional.cross_entropy(self(seen).flatten(0, 1), following.flatten())

    def write(self, start, count, seed, temperature=0.8):
        """Returns start and count bytes more, drawn one by one; every rank draws the same."""
        rng, text = np.random.default_rng(seed), list(start)
        for _ in range(count):
            seen = text[-self.length :]
            padded = np.array([seen + [0] * (self.length - len(seen))])  # one shape; the padding is in the future
            row = self(self.place(padded, sbp=self.layouts[0].whole))[0, len(seen) - 1]
            scores = everywhere(row).numpy().astype(np.float64) / temperature
            chances = np.exp(scores - scores.max())
            text.append(int(rng.choice(256, p=chances / chances.sum())))
        return bytes(text)
