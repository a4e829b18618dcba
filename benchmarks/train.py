#!/usr/bin/env python3
"""One training step on one rank: an MLP, a LeNet-like CNN and a small GPT, eager, forward + backward + update.

With --peer this script times the same models in PyTorch and prints {"name": seconds}; the benchmark runs it so in the Python
that $HOLON_BENCH_TORCH_PYTHON names. Without PyTorch the comparison is left out (ratio null).
"""
import json
import os
import statistics
import subprocess
import sys
import time

PEER = "--peer" in sys.argv
if PEER:
    import torch as flow
    import torch.nn as nn
    import torch.nn.functional as F
else:
    import holon as flow
    import holon.nn as nn
    import holon.nn.functional as F


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(1, 32, 5, padding=2), nn.Conv2d(32, 64, 5, padding=2)
        self.f1, self.f2 = nn.Linear(7 * 7 * 64, 512), nn.Linear(512, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.c1(x)), 2)
        x = F.max_pool2d(F.relu(self.c2(x)), 2)
        return self.f2(F.relu(self.f1(flow.flatten(x, 1))))


class Block(nn.Module):
    def __init__(self, width, heads, length):
        super().__init__()
        self.heads, self.n1, self.n2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mask = flow.triu(flow.full([length, length], float("-inf")), 1)

    def forward(self, x):
        b, t, c = x.shape
        h = self.n1(x)
        q, k, v = (f(h).reshape(b, t, self.heads, c // self.heads).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = flow.matmul(q, k.transpose(-2, -1)) * (c // self.heads) ** -0.5 + self.mask
        y = flow.matmul(F.softmax(scores, -1), v).transpose(1, 2).reshape(b, t, c)
        x = x + self.out(y)
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Gpt(nn.Module):
    def __init__(self, layers=4, width=256, heads=4, length=128):
        super().__init__()
        self.token, self.place = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads, length) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)
        self.positions = flow.arange(length)

    def forward(self, x):
        y = self.head(self.norm(self.blocks(self.token(x) + self.place(self.positions))))
        return y.reshape(-1, 256)


def mlp():
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def sgd(p):
    return flow.optim.SGD(p, lr=0.05)


def adamw(p):
    return flow.optim.AdamW(p, lr=3e-4)


KINDS = {
    "mlp": (mlp, sgd, lambda: (flow.rand(256, 784), flow.randint(0, 10, [256])), 20),
    "cnn": (Cnn, sgd, lambda: (flow.rand(128, 1, 28, 28), flow.randint(0, 10, [128])), 2),
    "gpt": (Gpt, adamw, lambda: (flow.randint(0, 256, [8, 128]), flow.randint(0, 256, [1024])), 1),
}


def step_seconds(kind, repeats=7):
    make, make_optimizer, data, inner = KINDS[kind]
    model, (x, y) = make(), data()
    optimizer = make_optimizer(model.parameters())
    times = []
    for i in range(repeats + 2):
        start = time.perf_counter()
        for _ in range(inner):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        if i > 1:
            times.append((time.perf_counter() - start) / inner)
    return statistics.median(times)


def main():
    if PEER:
        flow.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        print(json.dumps({kind: step_seconds(kind) for kind in KINDS}))
        return
    ours = {kind: step_seconds(kind) for kind in KINDS}
    theirs, python = {}, os.environ.get("HOLON_BENCH_TORCH_PYTHON")
    if python:
        done = subprocess.run([python, __file__, "--peer"], capture_output=True, text=True)
        theirs = json.loads(done.stdout) if done.returncode == 0 else {}
    for kind, value in ours.items():
        print(json.dumps({"name": f"train: {kind}, 1 rank, eager step", "value": round(value * 1e3, 3), "unit": "ms",
                          "against": "PyTorch eager" if kind in theirs else None,
                          "ratio": round(theirs[kind] / value, 3) if kind in theirs else None}), flush=True)


if __name__ == "__main__":
    main()
