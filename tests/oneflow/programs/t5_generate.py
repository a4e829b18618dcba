"""An encoder and a decoder in T5's manner (buckets of relative positions, RMS norms, cross attention, teacher forcing)
on a grid of ranks, and generation: greedy, by beams of logits processed with top-k, top-p, temperature and a penalty of
repetition, and sampled."""

import math

import numpy as np
import oneflow as flow
from oneflow import nn

VOCAB, DIM, HEADS, BUCKETS, BATCH = 29, 16, 4, 8, 4
B, S = flow.sbp.broadcast, flow.sbp.split
n = flow.env.get_world_size()
P = flow.placement("cpu", ranks=np.arange(n).reshape(-1, 2 if n > 1 else 1).tolist())
BATCH_SBP, ALL = [S(0), B], [B, B]


def param(shape, sbp, std=0.3):
    p = nn.Parameter(flow.empty(shape, placement=P, sbp=sbp))
    nn.init.normal_(p, std=std / math.sqrt(shape[0]))
    return p


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(flow.ones(DIM, placement=P, sbp=ALL))

    def forward(self, x):
        variance = x.to(flow.float32).square().mean(-1, keepdim=True)
        return self.weight * (x * flow.rsqrt(variance + 1e-6))


def buckets(query, key, bidirectional):
    """Which bucket the distance of each key from each query falls into."""
    context = flow.arange(query, placement=P, sbp=ALL).unsqueeze(1)
    memory = flow.arange(key, placement=P, sbp=ALL).unsqueeze(0)
    distance = memory - context
    count, result = BUCKETS, flow.zeros_like(distance)
    if bidirectional:
        count //= 2
        result = result + (distance > 0).to(flow.long) * count
        distance = flow.abs(distance)
    else:
        distance = -flow.minimum(distance, flow.zeros_like(distance))
    exact = count // 2
    small = distance < exact
    large = exact + (flow.log(distance.float() / exact + 1e-9) / math.log(16 / exact) * (count - exact)).to(flow.long)
    large = flow.min(large, flow.full_like(large, count - 1))
    return result + flow.where(small, distance, large)


class Attention(nn.Module):
    def __init__(self, biased=False, bidirectional=True):
        super().__init__()
        self.q, self.k, self.v = (param((DIM, DIM), [B, S(1)]) for _ in range(3))
        self.o = param((DIM, DIM), [B, S(0)])
        self.bidirectional = bidirectional
        self.bias = param((BUCKETS, HEADS), ALL) if biased else None

    def heads(self, x):
        return x.view(x.size(0), -1, HEADS, DIM // HEADS).transpose(1, 2)

    def forward(self, x, memory=None, mask=None, position_bias=None):
        memory = x if memory is None else memory
        q, k, v = (
            self.heads(flow.matmul(x, self.q)),
            self.heads(flow.matmul(memory, self.k)),
            self.heads(flow.matmul(memory, self.v)),
        )
        scores = flow.matmul(q, k.transpose(3, 2))
        if self.bias is not None:
            position_bias = (
                flow._C.gather(self.bias, buckets(x.size(1), memory.size(1), self.bidirectional), axis=0)
                .permute(2, 0, 1)
                .unsqueeze(0)
            )
        if position_bias is not None:
            scores = scores + position_bias
        if mask is not None:
            scores = scores.masked_fill(mask == 0, flow.finfo(flow.float32).min)
        weights = nn.functional.softmax(scores.float(), dim=-1).type_as(scores)
        context = flow.matmul(weights, v).transpose(1, 2).contiguous().view(x.size(0), -1, DIM)
        return flow.matmul(context, self.o).to_global(sbp=BATCH_SBP), position_bias


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.wi_0, self.wi_1 = param((DIM, 2 * DIM), [B, S(1)]), param((DIM, 2 * DIM), [B, S(1)])
        self.wo = param((2 * DIM, DIM), [B, S(0)])

    def forward(self, x):
        gated = flow._C.fused_fast_gelu_mul(flow.matmul(x, self.wi_0), flow.matmul(x, self.wi_1))
        return flow.matmul(gated, self.wo).to_global(sbp=BATCH_SBP)


class Block(nn.Module):
    def __init__(self, first, decoder):
        super().__init__()
        self.self_attention = Attention(first, not decoder)
        self.cross_attention = Attention() if decoder else None
        self.feed_forward = FeedForward()
        self.norms = nn.ModuleList([RMSNorm() for _ in range(3 if decoder else 2)])

    def forward(self, x, mask, bias, memory=None, memory_mask=None):
        y, bias = self.self_attention(self.norms[0](x), mask=mask, position_bias=bias)
        x = x + y
        if self.cross_attention is not None:
            x = x + self.cross_attention(self.norms[1](x), memory, memory_mask)[0]
        return x + self.feed_forward(self.norms[-1](x)), bias


class Stack(nn.Module):
    def __init__(self, decoder):
        super().__init__()
        self.blocks = nn.ModuleList([Block(i == 0, decoder) for i in range(2)])
        self.norm = RMSNorm()

    def forward(self, x, mask, memory=None, memory_mask=None):
        bias = None
        for block in self.blocks:
            x, bias = block(x, mask, bias, memory, memory_mask)
        return self.norm(x)


class T5(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Parameter(flow.empty(VOCAB, DIM, placement=P, sbp=[B, S(0)]))
        nn.init.normal_(self.shared, mean=0.0, std=1.0)
        self.encoder, self.decoder = Stack(False), Stack(True)

    def embed(self, ids):
        return flow._C.gather(self.shared, ids, axis=0).to_global(sbp=BATCH_SBP)

    def encode(self, ids):
        mask = (ids != 0).unsqueeze(1).unsqueeze(1)
        return self.encoder(self.embed(ids), mask), mask

    def decode(self, ids, memory, memory_mask):
        length = ids.size(1)
        causal = flow.tril(flow.ones((length, length), dtype=flow.int8, placement=P, sbp=ALL))
        x = self.decoder(self.embed(ids), causal.unsqueeze(0).unsqueeze(0), memory, memory_mask)
        return flow.matmul(x * DIM**-0.5, self.shared, transpose_b=True)

    def forward(self, ids, labels):
        start = flow.zeros((labels.size(0), 1), dtype=labels.dtype, placement=P, sbp=labels.sbp)
        inputs = flow.cat([start, labels[:, :-1]], dim=1)
        logits = self.decode(inputs, *self.encode(ids))
        return nn.functional.cross_entropy(logits.view(-1, VOCAB), labels.reshape(-1), ignore_index=0)


def top_k_top_p(logits, k, p):
    """Logits outside of the k largest, or of the fewest whose probabilities sum up to p, become minus infinity."""
    least = flow.topk(logits, k)[0][..., -1, None]
    logits = logits.masked_fill(logits < least, -1e9)
    values, order = flow.sort(logits, dim=-1, descending=True)
    drop = nn.functional.softmax(values, dim=-1).cumsum(dim=-1) > p
    drop = flow.cat((flow.zeros_like(drop[..., :1]), drop[..., :-1]), dim=-1)
    drop = flow.scatter(drop.to(flow.int32), 1, order, drop.to(flow.int32)).to(flow.bool)
    return logits.masked_fill(drop, -1e9)


@flow.no_grad()
def generate(model, ids, steps, sample=False):
    memory, mask = model.encode(ids)
    out = flow.zeros((ids.size(0), 1), dtype=flow.long, placement=P, sbp=BATCH_SBP)
    done = flow.zeros(ids.size(0), dtype=flow.long, placement=P, sbp=BATCH_SBP)
    for _ in range(steps):
        logits = model.decode(out, memory, mask)[:, -1, :].to_global(sbp=BATCH_SBP)
        if sample:
            seen = flow.gather(logits, 1, out)
            seen = flow.where(seen < 0, seen * 1.2, seen / 1.2)
            logits = flow.scatter(logits, 1, out, seen)
            chances = nn.functional.softmax(top_k_top_p(logits / 0.7, 5, 0.9), dim=-1)
            following = flow.multinomial(chances.to_global(sbp=ALL), num_samples=1).squeeze(1).to_global(sbp=BATCH_SBP)
        else:
            following = flow.argmax(logits, dim=-1)
        following = following * (1 - done)
        out = flow.cat((out, following.unsqueeze(1)), dim=-1)
        done = flow.maximum(done, (following == 1).to(flow.long))
        if int(done.sum().item()) == ids.size(0):
            break
    return out


def main():
    flow.manual_seed(31)
    model = T5()
    optimizer = flow.optim.Adam(model.parameters(), lr=0.02)
    rng = np.random.default_rng(8)
    losses = []
    for _ in range(6):
        words = rng.integers(2, VOCAB, (BATCH, 5))
        ids, labels = words.copy(), words[:, ::-1].copy()
        ids[:, -1] = 0
        labels[:, -1] = 1
        ids, labels = (flow.tensor(a, placement=P, sbp=BATCH_SBP) for a in (ids, labels))
        loss = model(ids, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    model.eval()
    greedy = generate(model, ids, 4)
    flow.manual_seed(5)
    sampled = generate(model, ids, 4, sample=True)
    assert greedy.shape[0] == sampled.shape[0] == BATCH and greedy.is_global
    sums = [int(x.sum().item()) for x in (greedy, sampled)]
    print("result", *(f"{v:.4f}" for v in losses), *sums)


if __name__ == "__main__":
    main()
