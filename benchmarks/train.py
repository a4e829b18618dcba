#!/usr/bin/env python3
"""One training step of an MLP, a LeNet-like CNN and a small GPT, eager, forward + backward + update: on one rank, and
data-parallel on two with the same global batch; and the peak memory of the GPT's rank 0.

Each side runs as processes of this script: ours by the launcher, --peer in PyTorch (DDP over gloo by torchrun on two
ranks) in the Python that $HOLON_BENCH_TORCH_PYTHON names. Without PyTorch the comparison is left out (ratio null).
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import time

PEER = "--peer" in sys.argv
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
RANK = int(os.environ.get("RANK", "0"))
if PEER:
    import torch as flow
    import torch.nn as nn
    import torch.nn.functional as F
else:
    import holon.nn.functional as F

    import holon as flow
    import holon.nn as nn


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


def spread(model, x, y):
    """The model with whole parameters on every rank, and this rank's part of the batch."""
    if WORLD == 1:
        return model, x, y
    if PEER:
        n, m = x.shape[0] // WORLD, y.shape[0] // WORLD
        return nn.parallel.DistributedDataParallel(model), x[RANK * n : (RANK + 1) * n], y[RANK * m : (RANK + 1) * m]
    where = flow.placement.all("cpu")
    whole, rows = flow.sbp.broadcast, flow.sbp.split(0)
    model.to_global(where, whole)
    for part in model.modules():
        for name in ("mask", "positions"):
            if name in vars(part):
                setattr(part, name, getattr(part, name).to_global(where, whole))
    return model, x.to_global(where, whole).to_global(sbp=rows), y.to_global(where, whole).to_global(sbp=rows)


def step_seconds(kind, repeats=7):
    make, make_optimizer, data, inner = KINDS[kind]
    model, x, y = spread(make(), *data())
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


def worker():
    if PEER:
        flow.set_num_threads(1)
        if WORLD > 1:
            flow.distributed.init_process_group("gloo")
    found = {kind: step_seconds(kind) for kind in KINDS}
    found["peak MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if RANK == 0:
        print(json.dumps(found), flush=True)
    if PEER and WORLD > 1:
        flow.distributed.destroy_process_group()


def figures(python, launcher, ranks, *flags):
    start = [python] if ranks == 1 else [python, "-m", launcher, "--nproc_per_node", str(ranks)]
    env = dict(os.environ, OMP_NUM_THREADS="1")
    done = subprocess.run([*start, __file__, "--worker", *flags], capture_output=True, text=True, env=env)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return {}
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    python = os.environ.get("HOLON_BENCH_TORCH_PYTHON")
    for ranks in (1, 2):
        ours = figures(sys.executable, "holon.distributed.launch", ranks)
        theirs = figures(python, "torch.distributed.run", ranks, "--peer") if python else {}
        against = ("PyTorch eager" if ranks == 1 else "PyTorch DDP, gloo") if theirs else None
        for kind, value in ours.items():
            scale, unit = (1, "MiB") if kind == "peak MiB" else (1e3, "ms")
            name = (
                f"train: {kind}, {ranks} rank{'s, data-parallel' if ranks > 1 else ''}, eager step"
                if unit == "ms"
                else f"train: peak of rank 0 of {ranks}, all models"
            )
            print(
                json.dumps(
                    {
                        "name": name,
                        "value": round(value * scale, 3),
                        "unit": unit,
                        "against": against,
                        "ratio": round(theirs[kind] / value, 3) if theirs else None,
                    }
                ),
                flush=True,
            )


if __name__ == "__main__":
    worker() if "--worker" in sys.argv else main()
