"""A vision transformer, data parallel or on a grid: patches by a convolution, a class token, stochastic depth, label
smoothing, mixed labels, an average of the weights, evaluation by top-k accuracy summed over ranks by flow.comm."""

import copy

import numpy as np
import oneflow as flow
import oneflow.nn as nn
import oneflow.nn.functional as F
from oneflow.nn import Parameter

CLASSES, DIM, BATCH = 5, 16, 8
P = flow.placement.all("cpu")
B, S0 = flow.sbp.broadcast, flow.sbp.split(0)


class DropPath(nn.Module):
    def __init__(self, p=0.0):
        super().__init__()
        self.p = p

    def forward(self, x):
        if self.p == 0.0 or not self.training:
            return x
        keep = 1 - self.p
        shape = (x.shape[0],) + (1,) * (x.ndim - 1)
        mask = flow.rand(*shape, dtype=x.dtype, placement=x.placement, sbp=x.sbp) if x.is_global else flow.rand(*shape)
        return x / keep * (mask + keep).floor()


class Block(nn.Module):
    def __init__(self, drop):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM, eps=1e-6), nn.LayerNorm(DIM, eps=1e-6)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))
        self.drop = DropPath(drop) if drop > 0 else nn.Identity()
        self.gamma = Parameter(0.5 * flow.ones(DIM))

    def attention(self, x):
        b, length, c = x.shape
        q, k, v = self.qkv(x).reshape(b, length, 3, 4, c // 4).permute(2, 0, 3, 1, 4).unbind(0)
        weights = F.softmax((q * (c // 4) ** -0.5) @ k.transpose(-2, -1), dim=-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, length, c))

    def forward(self, x):
        x = x + self.drop(self.gamma * self.attention(self.norm1(x)))
        return x + self.drop(self.mlp(self.norm2(x)))


class ViT(nn.Module):
    def __init__(self, drop_path=0.1):
        super().__init__()
        self.patch = nn.Conv2d(3, DIM, kernel_size=4, stride=4)
        self.cls_token = Parameter(flow.zeros(1, 1, DIM))
        self.pos_embed = Parameter(flow.zeros(1, 5, DIM))
        rates = [x.item() for x in flow.linspace(0, drop_path, 2)]
        self.blocks = nn.Sequential(*[Block(r) for r in rates])
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, CLASSES)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        self.apply(self._init)

    @staticmethod
    def _init(m):
        if isinstance(m, nn.Linear):
            nn.init.trunc_normal_(m.weight, std=0.02)
            if m.bias is not None:
                nn.init.zeros_(m.bias)

    def no_weight_decay(self):
        return {"pos_embed", "cls_token"}

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = flow.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


def mixed(x, labels, weight):
    target = F.one_hot(labels, CLASSES).to(x.dtype) * 0.9 + 0.1 / CLASSES
    return weight * x + (1 - weight) * x.flip([0]), weight * target + (1 - weight) * target.flip([0])


def main():
    flow.manual_seed(77)
    model = ViT().to_global(placement=P, sbp=B)
    average = copy.deepcopy(model)
    groups = [
        {
            "params": [p for k, p in model.named_parameters() if k not in model.no_weight_decay() and p.ndim > 1],
            "weight_decay": 0.05,
        },
        {
            "params": [p for k, p in model.named_parameters() if k in model.no_weight_decay() or p.ndim <= 1],
            "weight_decay": 0.0,
        },
    ]
    optimizer = flow.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))
    rng = np.random.default_rng(6)
    losses = []
    for _ in range(5):
        labels = rng.integers(0, CLASSES, BATCH)
        images = (rng.standard_normal((BATCH, 3, 8, 8)) + labels[:, None, None, None]).astype(np.float32)
        x, y = flow.tensor(images, placement=P, sbp=S0), flow.tensor(labels, placement=P, sbp=S0)
        x, target = mixed(x, y, 0.8)
        loss = flow.sum(-target * F.log_softmax(model(x), dim=-1), dim=-1).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        with flow.no_grad():
            for a, p in zip(average.parameters(), model.parameters()):
                a.mul_(0.9).add_(p, alpha=0.1)
        losses.append(loss.numpy().item())
    average.eval()
    with flow.inference_mode():
        logits = average(x)
        mine = logits.to_local().topk(2, dim=1)[1] == y.to_local().unsqueeze(1)
        hits = mine.sum().to(flow.float32).view(1)
        flow.comm.all_reduce(hits)
        whole = int((logits.topk(2, dim=1)[1] == y.unsqueeze(1)).sum().item())
        assert int(hits.item()) == whole
        weights = float(sum(p.abs().sum().item() for p in average.parameters()))
    print("result", *(f"{v:.5f}" for v in losses), f"{weights:.3f}", whole)


if __name__ == "__main__":
    main()
