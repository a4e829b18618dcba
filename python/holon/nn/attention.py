"""Attention over several heads."""

from .. import _C
from . import functional as F
from . import init
from .linear import Linear
from .module import Module
from .parameter import Where


class MultiheadAttention(Module):
    """Attention of query [l, n, embed_dim] over key and value [s, n, ...], in num_heads parts of embed_dim;
    [n, l, ...] if batch_first, and without n for one sample.

    A bool mask leaves out what is True; a floating point mask is added to the scores. Weights and state are PyTorch's:
    in_proj_weight holds those of query, key and value. packed=False keeps these apart as q_proj_weight, k_proj_weight
    and v_proj_weight (as kdim and vdim do), so that sbp={"?_proj_weight": S(0), "out_proj.weight": S(1), "*": B} splits
    the heads over ranks without a message before out_proj; a state of the other kind loads into either.
    """

    def __init__(
        self,
        embed_dim,
        num_heads,
        dropout=0.0,
        bias=True,
        *,
        kdim=None,
        vdim=None,
        batch_first=False,
        packed=None,
        placement=None,
        sbp=None,
        device=None,
        dtype=None,
    ):
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"MultiheadAttention: embed_dim {embed_dim} does not divide into {num_heads} heads.")
        self.embed_dim, self.num_heads, self.dropout, self.batch_first = embed_dim, num_heads, dropout, batch_first
        self.kdim, self.vdim = embed_dim if kdim is None else kdim, embed_dim if vdim is None else vdim
        self.head_dim = embed_dim // num_heads
        alike = self.kdim == self.vdim == embed_dim
        self.packed = alike if packed is None else packed
        if self.packed and not alike:
            raise ValueError(
                f"MultiheadAttention: one packed weight needs kdim and vdim of embed_dim {embed_dim}; "
                f"found {kdim}, {vdim}."
            )
        where = Where(placement, sbp, device, dtype)
        e = embed_dim
        self.register_parameter("in_proj_weight", where.parameter("in_proj_weight", 3 * e, e) if self.packed else None)
        for name, width in (("q", e), ("k", self.kdim), ("v", self.vdim)):
            name += "_proj_weight"
            self.register_parameter(name, None if self.packed else where.parameter(name, e, width))
        self.register_parameter("in_proj_bias", where.bias("in_proj_bias", 3 * e) if bias else None)
        self.out_proj = Linear(e, e, bias, **where.below("out_proj"))
        self.register_load_state_dict_pre_hook(_repack)
        self.reset_parameters()

    def reset_parameters(self):
        """Draws the weights of query, key and value by xavier_uniform_; biases are 0."""
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query,
        key,
        value,
        key_padding_mask=None,
        need_weights=True,
        attn_mask=None,
        average_attn_weights=True,
        is_causal=False,
    ):
        """Returns (result, weights), the weights None unless need_weights:
        without them the scores are never whole in memory."""
        one = query.ndim == 2
        if query.ndim not in (2, 3) or key.ndim != query.ndim or value.ndim != query.ndim:
            raise ValueError(
                f"MultiheadAttention: query, key and value must all have 3 axes, or all 2 for one sample; found "
                f"{list(query.shape)}, {list(key.shape)}, {list(value.shape)}."
            )
        same = query is key and key is value
        if one:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        if same:
            key = value = query
        results = F.multi_head_attention(
            query,
            key,
            value,
            self.num_heads,
            self.out_proj.weight,
            self.out_proj.bias,
            self.in_proj_weight,
            self.q_proj_weight,
            self.k_proj_weight,
            self.v_proj_weight,
            self.in_proj_bias,
            attn_mask,
            key_padding_mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=is_causal,
            need_weights=need_weights,
            average_attn_weights=average_attn_weights,
        )
        result, weights = results[0], results[1] if need_weights else None
        if one:
            return result.squeeze(0), None if weights is None else weights.squeeze(0)
        return result if self.batch_first else result.transpose(0, 1), weights

    def extra_repr(self):
        return f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, batch_first={self.batch_first}"


def _repack(module, state, prefix, *_):
    """Makes of one packed weight in a state the three that the module has, or the other way."""
    whole, parts = prefix + "in_proj_weight", [f"{prefix}{n}_proj_weight" for n in "qkv"]
    if module.packed and whole not in state and all(p in state for p in parts):
        state[whole] = _C.ops["cat"]([state.pop(p) for p in parts])
    elif not module.packed and module.kdim == module.vdim == module.embed_dim and whole in state:
        state.update(zip(parts, state.pop(whole).chunk(3)))
