#!/usr/bin/env python3
"""CUDA: products, kernels bound by memory, attention, convolutions, launches, updates and GPT-2 steps. ./dev bench cuda

Ratios are against the device's own limits (its peak for products, a copy in the same run for kernels bound by memory)
and against PyTorch where $HOLON_BENCH_TORCH_PYTHON names a Python that has it for CUDA: its eager mode, torch.compile
for what is compiled, and where it has one, its fused optimizer. Workloads are in groups (--group NAME runs one); a
figure is printed as soon as it is measured, so that a crash loses no others. Without a device nothing is measured, and
the emulator of the tests is not a device. --smoke runs everything at tiny sizes and prints no figures.
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
CHILD_S = 600
DEVICE = "cuda"  # "cpu" where --smoke runs a PyTorch that has none


def seconds(flow, work, repeats):
    """The least time of one call, over several runs of many."""
    finish = flow.cuda.synchronize if DEVICE == "cuda" else lambda: None
    work()
    finish()
    best = math.inf
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(repeats):
            work()
        finish()
        best = min(best, (time.perf_counter() - start) / repeats)
    return best


class Gpt2:
    """GPT-2 in bfloat16 (automatic casts), of the sizes given, with what its training step needs."""

    def __init__(self, flow, layers, width, heads, vocabulary, batch, length):
        nn = flow.nn
        self.flow, self.functional = flow, import_module(f"{flow.__name__}.nn.functional")
        functional = self.functional

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

        self.vocabulary = vocabulary
        self.model = Gpt().to(DEVICE)
        self.text = flow.randint(0, vocabulary, (batch, length)).to(DEVICE)
        self.place = flow.arange(length).to(DEVICE)

    def loss(self, text, target):
        with self.flow.autocast(DEVICE, dtype=self.flow.bfloat16):
            logits = self.model(text, self.place)
            return self.functional.cross_entropy(logits.reshape(-1, self.vocabulary), target.reshape(-1))

    def step(self, compiled=False, clip=None, lr=1e-4, **adamw):
        """A step as a function of a text and its next tokens (self.text for both) that returns the loss. It updates by
        AdamW with these options, after gradients are clipped to the norm `clip`."""
        flow, model, same = self.flow, self.model, self.text
        optimizer = flow.optim.AdamW(model.parameters(), lr=lr, **adamw)
        clip_grad_norm_ = flow.nn.utils.clip_grad_norm_

        if compiled and flow.__name__ == "holon":

            class Step(flow.nn.Graph):
                def __init__(graph):
                    super().__init__()
                    graph.model = model
                    graph.add_optimizer(optimizer)

                def build(graph, text, target):
                    loss = self.loss(text, target)
                    loss.backward()
                    if clip:
                        clip_grad_norm_(model.parameters(), clip)
                    return loss

            graph = Step()
            return lambda text=same, target=same: graph(text, target)
        forward = by_torch_compile(flow, self.loss) if compiled else self.loss

        def step(text=same, target=same):
            loss = forward(text, target)
            loss.backward()
            if clip:
                clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return step


def by_torch_compile(torch, function):
    return torch.compile(function, backend="inductor" if DEVICE == "cuda" else "eager")


def chain_of(flow):
    """Element-wise ops that a compiler can make one kernel of."""
    functional = import_module(f"{flow.__name__}.nn.functional")

    def work(x, y):
        return functional.silu(x + y) * x * 0.5 + 1.0

    if flow.__name__ != "holon":
        return by_torch_compile(flow, work)

    class Chain(flow.nn.Graph):
        def build(self, x, y):
            return work(x, y)

    return Chain()


# Each group yields (name, seconds, work, unit): work is in FLOP or bytes, 1 where the time itself is the figure. What
# only PyTorch has a variant of is named "NAME, VARIANT" and compared with our NAME.


def products(flow, smoke):
    n = 64 if smoke else 8192
    repeats = 1 if smoke else 20
    for dtype in ("bfloat16", "float16"):
        a, b = (flow.randn(n, n).to(DEVICE).to(getattr(flow, dtype)) for _ in range(2))
        yield f"matmul {dtype} {n}", seconds(flow, lambda: a @ b, repeats), 2 * n**3, "FLOP/s"
    flow.backends.cuda.matmul.allow_tf32 = True
    a, b = (flow.randn(n, n).to(DEVICE) for _ in range(2))
    yield f"matmul tf32 {n}", seconds(flow, lambda: a @ b, repeats), 2 * n**3, "FLOP/s"


def memory(flow, smoke):
    repeats = 1 if smoke else 20
    functional = import_module(f"{flow.__name__}.nn.functional")
    elements = 1 << (10 if smoke else 27)
    x, y = (flow.randn(elements).to(DEVICE) for _ in range(2))
    yield COPY, seconds(flow, lambda: y.copy_(x), repeats), 8 * elements, "B/s"
    yield "add float32", seconds(flow, lambda: x + y, repeats), 12 * elements, "B/s"
    yield "gelu float32", seconds(flow, lambda: functional.gelu(x), repeats), 8 * elements, "B/s"
    yield "sum float32", seconds(flow, lambda: x.sum(), repeats), 4 * elements, "B/s"
    rows, width = (8, 128) if smoke else (1 << 14, 4096)
    h = flow.randn(rows, width).to(DEVICE).to(flow.bfloat16)
    scale, shift = (flow.ones(width).to(DEVICE).to(flow.bfloat16) for _ in range(2))
    norm = seconds(flow, lambda: functional.layer_norm(h, [width], scale, shift), repeats)
    yield "layer_norm bfloat16", norm, 4 * rows * width, "B/s"
    yield "softmax bfloat16", seconds(flow, lambda: flow.softmax(h, -1), repeats), 4 * rows * width, "B/s"
    chain = chain_of(flow)
    yield "chain of 5 ops float32, compiled", seconds(flow, lambda: chain(x, y), repeats), 12 * elements, "B/s"
    took = seconds(flow, lambda: chain(h, shift), repeats)
    yield "chain of 5 ops bfloat16, a row broadcast, compiled", took, 4 * rows * width, "B/s"


def attention(flow, smoke):
    """Causal, so half of the products; PyTorch's scaled_dot_product_attention chooses its kernel by itself. Backward
    has five products to forward's two."""
    functional = import_module(f"{flow.__name__}.nn.functional")
    for b, heads, t, d in [(1, 2, 32, 64)] if smoke else [(4, 16, 4096, 128), (16, 12, 1024, 64)]:
        q, k, v = (flow.randn(b, heads, t, d).to(DEVICE).to(flow.bfloat16).requires_grad_() for _ in range(3))
        forward = lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True)  # noqa: E731
        repeats, flop = 1 if smoke else 20, 2 * b * heads * t * t * d
        with flow.no_grad():
            yield f"attention forward bfloat16 {t}x{d}", seconds(flow, forward, repeats), flop, "FLOP/s"
        y = forward()
        both = lambda: flow.autograd.grad([forward()], [q, k, v], [y.detach()])  # noqa: E731
        name = f"attention forward and backward bfloat16 {t}x{d}"
        yield name, seconds(flow, both, repeats), 3.5 * flop, "FLOP/s"


def convolutions(flow, smoke):
    """Layers of ResNet-50, forward and backward: (channels, filters, size of the image, of the filter, stride)."""
    functional = import_module(f"{flow.__name__}.nn.functional")
    batch, repeats = (1, 1) if smoke else (64, 10)
    layers = [(3, 64, 224, 7, 2), (64, 64, 56, 3, 1), (256, 256, 14, 3, 1), (256, 1024, 14, 1, 1), (512, 512, 14, 3, 2)]
    for channels, filters, size, kernel, stride in [(4, 8, 8, 3, 2)] if smoke else layers:
        x = flow.randn(batch, channels, size, size).to(DEVICE).to(flow.bfloat16).requires_grad_()
        w = flow.randn(filters, channels, kernel, kernel).to(DEVICE).to(flow.bfloat16).requires_grad_()
        forward = lambda: functional.conv2d(x, w, stride=stride, padding=kernel // 2)  # noqa: E731
        y = forward().detach()
        work = lambda: flow.autograd.grad([forward()], [x, w], [y])  # noqa: E731
        name = f"conv2d forward and backward bfloat16 {channels}->{filters}, {kernel}x{kernel}/{stride}, {size}x{size}"
        flop = 3 * 2 * y.numel() * channels * kernel * kernel
        yield name, seconds(flow, work, repeats), flop, "FLOP/s"


def launches(flow, smoke):
    small = flow.ones(1).to(DEVICE)
    yield "launch of an eager op", seconds(flow, lambda: small + small, 2 if smoke else 2000), 1, "s"


def sizes_of_gpt2(smoke):
    return (1, 64, 2, 128, 1, 16) if smoke else (12, 768, 12, 50304, 16, 1024)


def updates(flow, smoke):
    """Of GPT-2's parameters, 124M, in float32."""
    parameters = list(Gpt2(flow, *sizes_of_gpt2(smoke)).model.parameters())
    for p in parameters:
        p.grad = flow.ones_like(p).detach()
    repeats = 1 if smoke else 20
    for variant, options in variants(flow):
        optimizer = flow.optim.AdamW(parameters, lr=1e-4, **options)
        yield f"AdamW step{variant}", seconds(flow, optimizer.step, repeats), 1, "s"
    clip = lambda: flow.nn.utils.clip_grad_norm_(parameters, 1.0)  # noqa: E731
    yield "clip_grad_norm_", seconds(flow, clip, repeats), 1, "s"


def variants(flow):
    return [("", {})] if flow.__name__ == "holon" else [("", {}), (", fused AdamW", {"fused": True})]


def gpt2(compiled):
    kind = "compiled" if compiled else "eager"

    def group(flow, smoke):
        sizes = sizes_of_gpt2(smoke)
        model = Gpt2(flow, *sizes)
        repeats, tokens = 1 if smoke else 5, sizes[4] * sizes[5]
        for variant, options in variants(flow):
            step = model.step(compiled, **options)
            yield f"gpt2 124M step, {kind}{variant}", seconds(flow, step, repeats), tokens, "tokens/s"
        step = model.step(compiled, clip=1.0, **variants(flow)[-1][1])
        yield f"gpt2 124M step, {kind}, clipped", seconds(flow, step, repeats), tokens, "tokens/s"

    return group


COPY = "copy float32"  # the others in its group are compared with it
GROUPS = {
    "products": products,
    "attention": attention,
    "gpt2 eager": gpt2(False),
    "gpt2 compiled": gpt2(True),
    "memory": memory,
    "updates": updates,
    "launches": launches,
    "convolutions": convolutions,
}


def child(module, group, smoke):
    sys.path.pop(0)  # this folder's names are not those of packages
    flow = import_module(module)
    for name in ("backends", "nn.utils", "optim"):
        import_module(f"{module}.{name}")
    if smoke and not flow.cuda.is_available():
        global DEVICE
        DEVICE = "cpu"
    for line in GROUPS[group](flow, smoke):
        print(json.dumps(line), flush=True)


def figures(python, module, group, smoke, env):
    """Yields (name, seconds, work, unit) as a child measures them; an error if it fails, after what it has measured."""
    command = [python, __file__, "--child", module, "--group", group, *(["--smoke"] if smoke else [])]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            for line in process.stdout:
                if line.startswith("["):
                    yield json.loads(line)
            status = process.wait(CHILD_S)
        finally:
            process.kill()
    if status:
        raise RuntimeError(f"{module}, {group}: exit status {status}")


def emit(name, value, unit, against, ratio):
    ratio = None if ratio is None else round(ratio, 3)
    print(json.dumps({"name": name, "value": value, "unit": unit, "against": against, "ratio": ratio}), flush=True)


def against_device(device, line, bandwidth):
    """Prints a figure against what the device can do."""
    name, took, work, unit = line
    peak = next((p for known, p in PEAKS.items() if known in device), None)
    if unit == "FLOP/s" and peak:
        limit = peak[1] if "tf32" in name else peak[0]
        emit(f"cuda {name}", work / took, unit, f"peak of {device}", work / took / limit)
    elif unit == "B/s" and bandwidth:
        emit(f"cuda {name}", work / took, unit, "copy in the same run", work / took / bandwidth)
    else:
        emit(f"cuda {name}", took if unit == "s" else work / took, unit, None, None)


def measure(group, device, smoke, env):
    """Runs a group, and in PyTorch what is there for it; returns the number of our figures."""
    ours, bandwidth = {}, None
    for line in figures(sys.executable, "holon", group, smoke, env):
        name, took, work, unit = line
        ours[name] = line
        if not smoke:
            against_device(device, line, bandwidth)
        if name == COPY:
            bandwidth = work / took
    python = os.environ.get("HOLON_BENCH_TORCH_PYTHON")
    if python and (smoke or torch_has_cuda(python)):
        for name, took, _, _ in figures(python, "torch", group, smoke, dict(os.environ)):
            base = next(n for n in (name, name.rsplit(", ", 1)[0]) if n in ours)
            _, own, work, unit = ours[base]
            if not smoke:
                value, against = own if unit == "s" else work / own, f"PyTorch{name.removeprefix(base)}"
                emit(f"cuda {base}", value, unit, against, took / own)
    return len(ours)


def torch_has_cuda(python):
    program = "import torch; assert torch.cuda.is_available()"
    return subprocess.run([python, "-c", program], capture_output=True).returncode == 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--child")
    parser.add_argument("--group", choices=GROUPS)
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    if args.child:
        return child(args.child, args.group, args.smoke)
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
    count, failed = 0, []
    for group in [args.group] if args.group else GROUPS:
        try:
            count += measure(group, device, args.smoke, env)
        except RuntimeError as error:
            failed.append(str(error))
            print(f"cuda: {error}", file=sys.stderr)
    if args.smoke:
        print(f"cuda: {count} workloads run", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
