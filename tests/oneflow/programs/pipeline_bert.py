"""BERT over two stages by nn.Graph: set_stage, gradient accumulation, tied word embeddings, a learning-rate schedule.
On one rank both stages lie on it; on four each has two ranks, data parallel. The losses are those of eager training."""

import numpy as np
import oneflow as flow
from oneflow import nn
from oneflow.nn.graph import GraphModule

VOCAB, HIDDEN, HEADS, LENGTH, BATCH, MICRO = 31, 16, 2, 8, 8, 2
B, S = flow.sbp.broadcast, flow.sbp.split(0)


def stages():
    n = flow.env.get_world_size()
    if n == 1:
        return [flow.placement("cpu", [0])] * 2
    return [flow.placement("cpu", list(range(n // 2))), flow.placement("cpu", list(range(n // 2, n)))]


class Embeddings(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(VOCAB, HIDDEN, padding_idx=0)
        self.position = nn.Embedding(LENGTH, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN, eps=1e-12)
        self.register_buffer("ids", flow.arange(LENGTH).unsqueeze(0))

    def forward(self, tokens):
        return self.norm(self.word(tokens) + self.position(self.ids[:, : tokens.size(1)]))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(HIDDEN, HIDDEN) for _ in range(3))
        self.dense = nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 2 * HIDDEN), nn.Linear(2 * HIDDEN, HIDDEN)
        self.norms = nn.ModuleList([nn.LayerNorm(HIDDEN) for _ in range(2)])
        self.activation = nn.GELU()

    def heads(self, x):
        return x.view(*x.size()[:-1], HEADS, HIDDEN // HEADS).permute(0, 2, 1, 3)

    def forward(self, x, mask):
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        scores = flow.matmul(q, k.transpose(-1, -2)) / (HIDDEN // HEADS) ** 0.5 + mask
        context = flow.matmul(nn.Softmax(dim=-1)(scores), v).permute(0, 2, 1, 3)
        context = context.reshape(*context.size()[:-2], HIDDEN)
        x = self.norms[0](x + self.dense(context))
        return self.norms[1](x + self.down(self.activation(self.up(x))))


class Front(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = Embeddings()
        self.layer = Layer()

    def forward(self, tokens, mask):
        return self.layer(self.embeddings(tokens), mask)


class Back(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Layer()
        self.transform = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.GELU(), nn.LayerNorm(HIDDEN))
        self.bias = nn.Parameter(flow.zeros(VOCAB))
        self.loss = nn.CrossEntropyLoss(ignore_index=-1)

    def forward(self, x, mask, table, labels):
        x = self.transform(self.layer(x, mask))
        logits = flow.matmul(x, table.transpose(0, 1)) + self.bias
        return self.loss(logits.view(-1, VOCAB), labels.view(-1))


class Bert(nn.Module):
    def __init__(self, placements):
        super().__init__()
        self.placements = placements
        self.front, self.back = Front(), Back()
        for m in self.modules():
            if isinstance(m, (nn.Linear, nn.Embedding)):
                m.weight.data.normal_(mean=0.0, std=0.05)
        self.front.to_global(placements[0], B)
        self.back.to_global(placements[1], B)

    def forward(self, tokens, labels):
        mask = (tokens == 0).to(flow.float32).view(tokens.shape[0], 1, 1, -1) * -10000.0
        hidden = self.front(tokens, mask)
        there = self.placements[1]
        hidden = hidden.to_global(placement=there, sbp=S)
        table = self.front.embeddings.word.weight.to_global(placement=there, sbp=B)
        return self.back(
            hidden, mask.to_global(placement=there, sbp=S), table, labels.to_global(placement=there, sbp=S)
        )


class Pretrain(nn.Graph):
    def __init__(self, bert, optimizer, schedule):
        super().__init__()
        self.bert = bert
        self.bert.front.to(GraphModule).set_stage(stage_id=0, placement=bert.placements[0])
        self.bert.back.to(GraphModule).set_stage(stage_id=1, placement=bert.placements[1])
        self.config.set_gradient_accumulation_steps(MICRO)
        self.config.allow_fuse_add_to_output(True)
        self.add_optimizer(optimizer, lr_sch=schedule)

    def build(self, tokens, labels):
        loss = self.bert(tokens, labels)
        loss.backward()
        return loss


def parts(seed):
    flow.manual_seed(seed)
    bert = Bert(stages())
    optimizer = flow.optim.AdamW(bert.parameters(), lr=1e-2, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = flow.optim.lr_scheduler.WarmUpLR(
        flow.optim.lr_scheduler.CosineDecayLR(optimizer, decay_steps=8, alpha=0.1), warmup_iters=3, warmup_factor=0.1
    )
    return bert, optimizer, schedule


def batches(n, placement):
    rng = np.random.default_rng(11)
    for _ in range(n):
        tokens = rng.integers(1, VOCAB, (BATCH, LENGTH))
        tokens[:, -2:] = 0
        labels = (tokens * 3) % VOCAB
        yield tuple(flow.tensor(a, dtype=flow.int64, placement=placement, sbp=S) for a in (tokens, labels))


def main():
    first, last = stages()
    bert, optimizer, schedule = parts(5)
    graph = Pretrain(bert, optimizer, schedule)
    graph_losses = []
    for tokens, labels in batches(5, first):
        loss = graph(tokens, labels)
        assert loss.placement == last
        graph_losses.append(float(np.mean(loss.numpy())))

    bert, optimizer, schedule = parts(5)
    eager_losses = []
    for tokens, labels in batches(5, first):
        total = 0.0
        for i in range(MICRO):
            rows = slice(i * BATCH // MICRO, (i + 1) * BATCH // MICRO)
            loss = bert(tokens[rows], labels[rows])
            (loss / MICRO).backward()
            total += loss.numpy() / MICRO
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        eager_losses.append(float(total))
    np.testing.assert_allclose(graph_losses, eager_losses, rtol=2e-4)
    assert graph_losses[-1] < graph_losses[0]
    print("result", *(f"{v:.5f}" for v in graph_losses))


if __name__ == "__main__":
    main()
