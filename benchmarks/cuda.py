#!/usr/bin/env python3
"""CUDA: products, kernels bound by memory, attention, launches and a GPT-2 training step. ./dev bench cuda

Ratios are against the device's own limits (its peak for products, a copy in the same run for kernels bound by memory)
and against PyTorch where $HOLON_BENCH_TORCH_PYTHON names a Python that has it for CUDA. Without a device nothing is
measured, and the emulator of the tests is not a device. --smoke runs everything at tiny sizes and prints no figures.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Dense bfloat16 and TF32 products, in FLOP/s, from the vendor's data sheets.
PEAKS = {"H100": (989e12, 495e12), "H200": (989e12, 495e12), "A100": (312e12, 156e12)}


def seconds(flow, work, repeats):
    """The least time of one call, over several runs of many."""
    work()
    flow.cuda.synchronize()
    best = math.inf
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(repeats):
            work()
        flow.cuda.synchronize()
        best = min(best, (time.perf_counter() - start) / repeats)
    return best


def gpt_step(flow, layers, width, heads, vocabulary, batch, length, compiled):
    """One step of training GPT-2 in bfloat16 (automatic casts), as a function."""
    nn = flow.nn
    functional = import_module(f"{flow.__name__}.nn.functional")

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            b, t, _ = x.shape
            q, k, v = (
                part.reshape(b, t, heads, width // heads).transpose(1, 2)
                for part in self.qkv(self.norm1(x)).chunk(3, -1)
            )
            seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(seen.transpose(1, 2).reshape(b, t, width))
            return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

        def forward(self, text, place):
            return self.head(self.norm(self.blocks(self.tokens(text) + self.places(place))))

    model = Gpt().to("cuda")
    optimizer = flow.optim.AdamW(model.parameters(), lr=1e-4)
    text = flow.randint(0, vocabulary, (batch, length)).to("cuda")
    place = flow.arange(length).to("cuda")

    def loss_of(text, target):
        with flow.autocast("cuda", dtype=flow.bfloat16):
            logits = model(text, place)
            return functional.cross_entropy(logits.reshape(-1, vocabulary), target.reshape(-1))

    if compiled and flow.__name__ == "holon":

        class Step(nn.Graph):
            def __init__(self):
                super().__init__()
                self.model = model
                self.add_optimizer(optimizer)

            def build(self, text, target):
                loss = loss_of(text, target)
                loss.backward()
                return loss

        graph = Step()
        return lambda: graph(text, text)
    forward = flow.compile(loss_of) if compiled else loss_of

    def step():
        loss = forward(text, text)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def chain_of(flow):
    """Element-wise ops that a compiler can make one kernel of."""
    functional = import_module(f"{flow.__name__}.nn.functional")

    def work(x, y):
        return functional.silu(x + y) * x * 0.5 + 1.0

    if flow.__name__ != "holon":
        return flow.compile(work)

    class Chain(flow.nn.Graph):
        def build(self, x, y):
            return work(x, y)

    return Chain()


def measure(flow, smoke):
    """Yields (name, seconds, work, unit): work is in FLOP or bytes, 1 where the time itself is the figure."""
    n = 64 if smoke else 8192
    repeats = 1 if smoke else 20
    functional = import_module(f"{flow.__name__}.nn.functional")
    for dtype in ("bfloat16", "float16"):
        a, b = (flow.randn(n, n).to("cuda").to(getattr(flow, dtype)) for _ in range(2))
        yield f"matmul {dtype} {n}", seconds(flow, lambda: a @ b, repeats), 2 * n**3, "FLOP/s"
    flow.backends.cuda.matmul.allow_tf32 = True
    a, b = (flow.randn(n, n).to("cuda") for _ in range(2))
    yield f"matmul tf32 {n}", seconds(flow, lambda: a @ b, repeats), 2 * n**3, "FLOP/s"

    elements = 1 << (10 if smoke else 27)
    x, y = (flow.randn(elements).to("cuda") for _ in range(2))
    yield "copy float32", seconds(flow, lambda: y.copy_(x), repeats), 8 * elements, "B/s"
    yield "add float32", seconds(flow, lambda: x + y, repeats), 12 * elements, "B/s"
    yield "gelu float32", seconds(flow, lambda: functional.gelu(x), repeats), 8 * elements, "B/s"
    yield "sum float32", seconds(flow, lambda: x.sum(), repeats), 4 * elements, "B/s"
    chain = chain_of(flow)
    yield "chain of 5 ops float32, compiled", seconds(flow, lambda: chain(x, y), repeats), 12 * elements, "B/s"
    rows, width = (8, 128) if smoke else (1 << 14, 4096)
    h = flow.randn(rows, width).to("cuda").to(flow.bfloat16)
    scale, shift = (flow.ones(width).to("cuda").to(flow.bfloat16) for _ in range(2))
    yield (
        "chain of 5 ops bfloat16, a row broadcast, compiled",
        seconds(flow, lambda: chain(h, shift), repeats),
        4 * rows * width,
        "B/s",
    )
    yield (
        "layer_norm bfloat16",
        seconds(flow, lambda: functional.layer_norm(h, [width], scale, shift), repeats),
        4 * rows * width,
        "B/s",
    )
    yield "softmax bfloat16", seconds(flow, lambda: flow.softmax(h, -1), repeats), 4 * rows * width, "B/s"

    b, heads, t, d = (1, 2, 32, 64) if smoke else (4, 16, 4096, 128)
    q, k, v = (flow.randn(b, heads, t, d).to("cuda").to(flow.bfloat16) for _ in range(3))
    attention = lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True)  # noqa: E731
    yield "attention forward bfloat16", seconds(flow, attention, repeats), 2 * b * heads * t * t * d, "FLOP/s"

    small = flow.ones(1).to("cuda")
    yield "launch of an eager op", seconds(flow, lambda: small + small, 2 if smoke else 2000), 1, "s"

    sizes = (1, 64, 2, 128, 1, 16) if smoke else (12, 768, 12, 50304, 16, 1024)
    for compiled in (False, True):
        kind = "compiled" if compiled else "eager"
        step = gpt_step(flow, *sizes, compiled=compiled)
        yield f"gpt2 124M step, {kind}", seconds(flow, step, 1 if smoke else 5), sizes[4] * sizes[5], "tokens/s"


def child(module, smoke):
    sys.path.pop(0)  # this folder's names are not those of packages
    flow = import_module(module)
    import_module(f"{module}.backends")
    for name, took, work, unit in measure(flow, smoke):
        print(json.dumps([name, took, work, unit]), flush=True)


def figures(python, module, smoke, env):
    done = subprocess.run(
        [python, __file__, "--child", module, *(["--smoke"] if smoke else [])],
        env=env,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    if done.returncode:
        raise RuntimeError(f"{module}: exit status {done.returncode}\n{done.stderr}")
    return {name: (took, work, unit) for name, took, work, unit in map(json.loads, done.stdout.splitlines())}


def emit(name, value, unit, against, ratio):
    print(
        json.dumps({"name": name, "value": value, "unit": unit, "against": against, "ratio": round(ratio, 3)}),
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--child")
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    if args.child:
        return child(args.child, args.smoke)
    sys.path.insert(0, str(ROOT / "python"))
    import holon

    if not holon.cuda.is_available():
        print(f"cuda: nothing is measured: {holon._C.why_no_device()}", file=sys.stderr)
        return 0
    device = holon.cuda.get_device_name(0)
    emulated = device == "emulated device"
    if emulated and not args.smoke:
        print("cuda: nothing is measured: the emulator is not a device", file=sys.stderr)
        return 0
    env = dict(
        os.environ, PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT / "python"), os.environ.get("PYTHONPATH")]))
    )
    ours = figures(sys.executable, "holon", args.smoke, env)
    if args.smoke:
        print(f"cuda: {len(ours)} workloads run", file=sys.stderr)
        return 0
    copied = ours["copy float32"]
    bandwidth = copied[1] / copied[0]
    peak = next((p for name, p in PEAKS.items() if name in device), None)
    for name, (took, work, unit) in ours.items():
        if unit == "FLOP/s" and peak:
            limit = peak[1] if "tf32" in name else peak[0]
            emit(f"cuda {name}", work / took, unit, f"peak of {device}", work / took / limit)
        elif unit == "B/s" and name != "copy float32":
            emit(f"cuda {name}", work / took, unit, "copy in the same run", work / took / bandwidth)
    python = os.environ.get("HOLON_BENCH_TORCH_PYTHON")
    if (
        python
        and subprocess.run(
            [python, "-c", "import torch; assert torch.cuda.is_available()"], capture_output=True
        ).returncode
        == 0
    ):
        theirs = figures(python, "torch", False, dict(os.environ))
        for name, (took, work, unit) in ours.items():
            value = took if unit == "s" else work / took
            emit(f"cuda {name}", value, unit, "PyTorch", theirs[name][0] / took)
    return 0


if __name__ == "__main__":
    sys.exit(main())
