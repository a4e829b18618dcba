"""The transformer of "Attention is all you need": layers and stacks of encoder and decoder."""

import copy

from .. import _C
from . import functional as F
from . import init
from .attention import MultiheadAttention
from .containers import ModuleList
from .dropout import Dropout
from .linear import Linear
from .module import Module
from .norm import LayerNorm
from .parameter import Where, broadcast_over


class _Layer(Module):
    """What the layers of encoder and decoder share: attention blocks, then two Linears, each added to what went in."""

    _attentions: tuple[str, ...] = ()

    def __init__(
        self,
        d_model,
        nhead,
        dim_feedforward=2048,
        dropout=0.1,
        activation=F.relu,
        layer_norm_eps=1e-5,
        batch_first=False,
        norm_first=False,
        bias=True,
        *,
        packed=None,
        placement=None,
        sbp=None,
        device=None,
        dtype=None,
    ):
        super().__init__()
        where = Where(placement, sbp, device, dtype)
        for name in self._attentions:
            self.add_module(
                name,
                MultiheadAttention(
                    d_model, nhead, dropout, bias, batch_first=batch_first, packed=packed, **where.below(name)
                ),
            )
        self.linear1 = Linear(d_model, dim_feedforward, bias, **where.below("linear1"))
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, **where.below("linear2"))
        self.norm_first = norm_first
        blocks = range(1, len(self._attentions) + 2)
        for i in blocks:
            self.add_module(f"norm{i}", LayerNorm(d_model, layer_norm_eps, bias=bias, **where.below(f"norm{i}")))
        for i in blocks:
            self.add_module(f"dropout{i}", Dropout(dropout))
        if isinstance(activation, str):
            if activation not in ("relu", "gelu"):
                raise ValueError(
                    f"{type(self).__name__}: activation is {activation!r}; it must be 'relu', 'gelu' or a function."
                )
            activation = getattr(F, activation)
        self.activation = activation

    def _add(self, x, i, block):
        """x and a block of it, with norm i before the block or behind the sum."""
        norm, dropout = getattr(self, f"norm{i}"), getattr(self, f"dropout{i}")
        return x + dropout(block(norm(x))) if self.norm_first else norm(x + dropout(block(x)))

    def _feed_forward(self, x):
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class TransformerEncoderLayer(_Layer):
    """Self-attention and two Linears. With packed=False, sbp={"*.?_proj_weight": S(0), "linear1.*": S(0),
    "*out_proj.weight": S(1), "linear2.weight": S(1), "*": B} splits heads and hidden units over ranks."""

    _attentions = ("self_attn",)

    def forward(self, src, src_mask=None, src_key_padding_mask=None, is_causal=False):
        x = self._add(
            src, 1, lambda y: self.self_attn(y, y, y, src_key_padding_mask, False, src_mask, is_causal=is_causal)[0]
        )
        return self._add(x, 2, self._feed_forward)


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention over what the encoder gave (memory), and two Linears."""

    _attentions = ("self_attn", "multihead_attn")

    def forward(
        self,
        tgt,
        memory,
        tgt_mask=None,
        memory_mask=None,
        tgt_key_padding_mask=None,
        memory_key_padding_mask=None,
        tgt_is_causal=False,
        memory_is_causal=False,
    ):
        x = self._add(
            tgt, 1, lambda y: self.self_attn(y, y, y, tgt_key_padding_mask, False, tgt_mask, is_causal=tgt_is_causal)[0]
        )
        x = self._add(
            x,
            2,
            lambda y: self.multihead_attn(
                y, memory, memory, memory_key_padding_mask, False, memory_mask, is_causal=memory_is_causal
            )[0],
        )
        return self._add(x, 3, self._feed_forward)


class _Stack(Module):
    """Copies of one layer, one after the other, and a norm behind the last."""

    def __init__(self, layer, num_layers, norm=None):
        super().__init__()
        self.layers = ModuleList([copy.deepcopy(layer) for _ in range(num_layers)])
        self.num_layers = num_layers
        self.norm = norm

    def _run(self, x, *args, **kwargs):
        for layer in self.layers:
            x = layer(x, *args, **kwargs)
        return x if self.norm is None else self.norm(x)


class TransformerEncoder(_Stack):
    """num_layers copies of an encoder layer, which start with the same values, and a norm behind them."""

    def forward(self, src, mask=None, src_key_padding_mask=None, is_causal=False):
        return self._run(src, mask, src_key_padding_mask, is_causal)


class TransformerDecoder(_Stack):
    """num_layers copies of a decoder layer, which start with the same values, and a norm behind them."""

    def forward(
        self,
        tgt,
        memory,
        tgt_mask=None,
        memory_mask=None,
        tgt_key_padding_mask=None,
        memory_key_padding_mask=None,
        tgt_is_causal=False,
        memory_is_causal=False,
    ):
        return self._run(
            tgt,
            memory,
            tgt_mask,
            memory_mask,
            tgt_key_padding_mask,
            memory_key_padding_mask,
            tgt_is_causal,
            memory_is_causal,
        )


class Transformer(Module):
    """Encoder and decoder. src is [s, n, d_model], tgt [t, n, d_model]; [n, ...] first if batch_first."""

    def __init__(
        self,
        d_model=512,
        nhead=8,
        num_encoder_layers=6,
        num_decoder_layers=6,
        dim_feedforward=2048,
        dropout=0.1,
        activation=F.relu,
        custom_encoder=None,
        custom_decoder=None,
        layer_norm_eps=1e-5,
        batch_first=False,
        norm_first=False,
        bias=True,
        *,
        packed=None,
        placement=None,
        sbp=None,
        device=None,
        dtype=None,
    ):
        super().__init__()
        where = Where(placement, sbp, device, dtype)
        layer = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias)

        def stack(kind, layer_kind, name, n):
            # A layer's names are those of the stack's first: the layers of a stack are alike, in layout too.
            here = Where(**where.below(name))
            norm = LayerNorm(d_model, layer_norm_eps, bias=bias, **here.below("norm"))
            return kind(layer_kind(*layer, packed=packed, **Where(**here.below("layers")).below("0")), n, norm)

        self.encoder = custom_encoder or stack(
            TransformerEncoder, TransformerEncoderLayer, "encoder", num_encoder_layers
        )
        self.decoder = custom_decoder or stack(
            TransformerDecoder, TransformerDecoderLayer, "decoder", num_decoder_layers
        )
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first
        for p in self.parameters():
            if p.ndim > 1:
                init.xavier_uniform_(p)

    def forward(
        self,
        src,
        tgt,
        src_mask=None,
        tgt_mask=None,
        memory_mask=None,
        src_key_padding_mask=None,
        tgt_key_padding_mask=None,
        memory_key_padding_mask=None,
        src_is_causal=False,
        tgt_is_causal=False,
        memory_is_causal=False,
    ):
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        return self.decoder(
            tgt,
            memory,
            tgt_mask,
            memory_mask,
            tgt_key_padding_mask,
            memory_key_padding_mask,
            tgt_is_causal,
            memory_is_causal,
        )

    @staticmethod
    def generate_square_subsequent_mask(sz, device=None, dtype=None, placement=None):
        """Returns the mask [sz, sz] that leaves out what comes later: 0 up to the diagonal, -inf above."""
        where = {"device": device} if placement is None else {"placement": placement, "sbp": broadcast_over(placement)}
        return _C.ops["full"](
            (sz, sz), float("-inf"), dtype=dtype or _C.float32, **{k: v for k, v in where.items() if v}
        ).triu(1)
