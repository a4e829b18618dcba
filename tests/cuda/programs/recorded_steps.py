"""Trains a small GPT with dropout in an nn.Graph, laid out as WORDS says, and prints what each step gives, bit by bit,
how often the host put work on the device and waited for it, and how many recordings a step has. Run with
HOLON_CUDA_GRAPHS=1 and 0 it must print the same bits."""

import ctypes
import hashlib
import os
import sys

import numpy as np

import holon as flow
from holon import nn

WORDS = os.environ["WORDS"].split()
HOW = WORDS[0]
DEVICE = "cpu" if "cpu" in WORDS else "cuda"
rank, RANKS = flow.env.get_rank(), list(range(flow.env.get_world_size()))
sbp = flow.sbp
place = flow.placement(DEVICE, RANKS)
VOCABULARY, WIDTH, HEADS, TIME, ROWS, STEPS = 32, 16, 2, 6, 8, 3


class Block(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(p)

    def heads(self, x):
        return x.reshape(x.shape[0], TIME, HEADS, WIDTH // HEADS).transpose(1, 2)

    def forward(self, x):
        h = self.before(x)
        q, k, v = (self.heads(linear(h)) for linear in (self.q, self.k, self.v))
        h = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=self.p, is_causal=True)
        x = x + self.drop(self.out(h.transpose(1, 2).reshape(x.shape[0], TIME, WIDTH)))
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.between(x)))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.drop = nn.Embedding(VOCABULARY, WIDTH), nn.Dropout(0.1)
        self.blocks = nn.ModuleList([Block(0.2)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x):
        x = self.drop(self.embed(x))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Train(nn.Graph):
    def __init__(self, model, optimizer):
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)
        if HOW.startswith("zero"):
            self.config.enable_zero(True, stage=int(HOW[-1]), shard_min_size=1)
        if HOW == "accumulation":
            self.config.set_gradient_accumulation_steps(2)
        if HOW == "amp":
            self.config.enable_amp(True, dtype=flow.float16)
            self.set_grad_scaler(flow.amp.GradScaler(init_scale=64.0))

    def build(self, x, y):
        logits = self.model(x)
        loss = nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), y.reshape(-1))
        loss.backward()
        if "clip" not in WORDS:
            return loss, logits
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 0.05)
        return loss, logits, norm


def bits(t):
    t = t.detach()
    if t.is_global:
        t = t.to_global(place, sbp.broadcast).to_local()
    return hashlib.sha256(np.ascontiguousarray(t.cpu().numpy()).tobytes()).hexdigest()[:12]


def counts():
    """How often the host has put work on the device, and waited for it."""
    library = os.environ.get("HOLON_CUDA_LIBRARY", "")
    if DEVICE == "cpu" or "emulated" not in library:
        return 0, 0
    emulator = ctypes.CDLL(library)
    return emulator.emulated_launch_count(), emulator.emulated_wait_count()


def laid_out(model):
    if HOW == "one":
        return model.to(DEVICE)
    model = model.to_global(place, sbp.broadcast)
    if HOW == "tensor":
        for block in model.blocks:
            for linear in (block.q, block.k, block.v, block.up):
                linear.to_global(place, sbp.split(0))
            for linear in (block.out, block.down):
                linear.weight = nn.Parameter(linear.weight.detach().to_global(place, sbp.split(1)))
    return model


def batch(rng):
    x, y = (flow.tensor(rng.integers(0, VOCABULARY, (ROWS, TIME))).to(DEVICE) for _ in range(2))
    if HOW == "one":
        return x, y
    over = sbp.broadcast if HOW == "tensor" else sbp.split(0)
    return tuple(t.to_global(place, sbp.broadcast).to_global(place, over) for t in (x, y))


def train():
    flow.manual_seed(7)
    model = laid_out(GPT())
    make = flow.optim.LAMB if "lamb" in WORDS else flow.optim.LARS if "lars" in WORDS else flow.optim.AdamW
    optimizer = make(model.parameters(), lr=1e-2)
    step = Train(model, optimizer)
    rng, kept = np.random.default_rng(1), None
    for i in range(STEPS + 4):
        x, y = batch(rng)
        if i == STEPS:  # the seed is another one; draws begin anew
            flow.manual_seed(11)
        if i == STEPS + 1:
            kept = step.state_dict()
            for group in optimizer.param_groups:
                group["lr"] = 3e-3
        if i == STEPS + 2:
            step.load_state_dict(kept)
        if i == STEPS + 3 and HOW != "zero3":  # parameters lie elsewhere
            model.head.weight.data = model.head.weight.data * 2
        before = counts()
        loss, logits, *norms = step(x, y)
        put, waited = (now - then for now, then in zip(counts(), before))
        weights = " ".join(bits(p) for p in model.parameters())
        sys.stdout.write(f"rank {rank} step {i}: loss {bits(loss)} logits {bits(logits)} weights {weights}")
        sys.stdout.write("".join(f" norm {bits(n)}" for n in norms) + "\n")
        recorded = step.stats()["recorded"]
        sys.stdout.write(f"# rank {rank} step {i}: {put} launches, {recorded} recorded, {waited} waits\n")
    if "plan" in WORDS and rank == 0:
        sys.stdout.write("".join(f"# {line}\n" for line in step.plan().splitlines()))
    sys.stdout.flush()


train()
