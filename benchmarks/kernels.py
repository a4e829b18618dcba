#!/usr/bin/env python3
"""The forty most used ops through the Python API, on one thread, forward and backward, beside PyTorch's.

Both sides evaluate the same expressions on tensors of the same shapes, in turns: this process ours, a second one, the
Python that $HOLON_BENCH_TORCH_PYTHON names, theirs. Without it there is nothing to compare and nothing is printed
(kernels_bench compares with memcpy). kernels.py WORD... runs the cases whose name has one of the words.
"""

import json
import os
import statistics
import subprocess
import sys
import time

os.environ["OMP_NUM_THREADS"] = "1"
ROUNDS = 7
SLICE_S = 0.03  # of one side in one round

# name, setup (names of tensors to shapes or expressions), expression, sizes: n of a cached and of an uncached case.
ELEMENTWISE = {"small": 96, "large": 2048}
CASES = [
    *(
        (name, {"x": "rand(n, n)", "y": "rand(n, n)"}, text, ELEMENTWISE)
        for name, text in {
            "add": "x + y",
            "sub": "x - y",
            "mul": "x * y",
            "div": "x / y",
            "maximum": "F.maximum(x, y)",
            "add scalar": "x + 1.5",
            "mul scalar": "x * 1.5",
            "pow 2": "x ** 2",
            "exp": "F.exp(x)",
            "log": "F.log(x)",
            "sqrt": "F.sqrt(x)",
            "rsqrt": "F.rsqrt(x)",
            "tanh": "F.tanh(x)",
            "sigmoid": "F.sigmoid(x)",
            "relu": "F.relu(x)",
            "gelu": "NN.gelu(x)",
            "silu": "NN.silu(x)",
            "abs": "F.abs(x)",
            "sin": "F.sin(x)",
            "clamp": "F.clamp(x, 0.2, 0.8)",
            "where": "F.where(x > y, x, y)",
            "masked_fill": "x.masked_fill(y > 0.5, 0.0)",
            "softmax": "F.softmax(x, -1)",
            "log_softmax": "F.log_softmax(x, -1)",
            "layer_norm": "NN.layer_norm(x, (n,))",
            "sum": "x.sum()",
            "sum dim 0": "x.sum(0)",
            "sum dim 1": "x.sum(1)",
            "mean": "x.mean()",
            "var dim 1": "x.var(1)",
            "amax dim 1": "F.amax(x, 1)",
            "cumsum": "F.cumsum(x, 1)",
            "cat": "F.cat([x, y], 1)",
            "transposed copy": "x.t().contiguous()",
            "clone": "x.clone()",
            "mse_loss": "NN.mse_loss(x, y)",
            "dropout": "NN.dropout(x, 0.1)",
            "cast to bfloat16": "x.to(F.bfloat16)",
        }.items()
    ),
    ("add row", {"x": "rand(n, n)", "y": "rand(n)"}, "x + y", ELEMENTWISE),
    (
        "layer_norm affine",
        {"x": "rand(n, n)", "w": "rand(n)", "b": "rand(n)"},
        "NN.layer_norm(x, (n,), w, b)",
        ELEMENTWISE,
    ),
    ("argmax dim 1", {"x": "rand(n, n)"}, "F.argmax(x, 1)", ELEMENTWISE),
    ("sort", {"x": "rand(n, n)"}, "F.sort(x, -1)[0]", {"small": 96, "large": 1024}),
    ("topk 5", {"x": "rand(n, n)"}, "F.topk(x, 5, -1)[0]", {"small": 96, "large": 2048}),
    ("matmul", {"x": "rand(n, n)", "y": "rand(n, n)"}, "F.matmul(x, y)", {"tiny": 8, "small": 96, "large": 768}),
    ("matmul vector", {"x": "rand(n, n)", "y": "rand(n)"}, "F.matmul(x, y)", {"small": 96, "large": 2048}),
    ("bmm", {"x": "rand(16, n, 64)", "y": "rand(16, 64, n)"}, "F.matmul(x, y)", {"small": 32, "large": 256}),
    (
        "linear",
        {"x": "rand(64, n)", "w": "rand(n, n)", "b": "rand(n)"},
        "NN.linear(x, w, b)",
        {"small": 64, "large": 1024},
    ),
    (
        "embedding",
        {"w": "rand(5000, n)", "i": "randint(0, 5000, (512,))"},
        "NN.embedding(i, w)",
        {"small": 32, "large": 768},
    ),
    (
        "index_select",
        {"x": "rand(4000, n)", "i": "randint(0, 4000, (512,))"},
        "F.index_select(x, 0, i)",
        {"small": 32, "large": 768},
    ),
    ("gather", {"x": "rand(n, n)", "i": "randint(0, n, (n, n))"}, "F.gather(x, 1, i)", {"small": 96, "large": 1024}),
    (
        "cross_entropy",
        {"x": "rand(256, n)", "i": "randint(0, n, (256,))"},
        "NN.cross_entropy(x, i)",
        {"small": 64, "large": 8192},
    ),
    (
        "batch_norm",
        {"x": "rand(8, n, 28, 28)", "w": "rand(n)", "b": "rand(n)"},
        "NN.batch_norm(x, None, None, w, b, True)",
        {"small": 4, "large": 64},
    ),
    (
        "group_norm",
        {"x": "rand(8, n, 28, 28)", "w": "rand(n)", "b": "rand(n)"},
        "NN.group_norm(x, 4, w, b)",
        {"small": 4, "large": 64},
    ),
    (
        "conv2d",
        {"x": "rand(8, n, 28, 28)", "w": "rand(n, n, 3, 3)", "b": "rand(n)"},
        "NN.conv2d(x, w, b, padding=1)",
        {"small": 4, "large": 64},
    ),
    ("max_pool2d", {"x": "rand(8, n, 28, 28)"}, "NN.max_pool2d(x, 2)", {"small": 4, "large": 64}),
    ("avg_pool2d", {"x": "rand(8, n, 28, 28)"}, "NN.avg_pool2d(x, 2)", {"small": 4, "large": 64}),
    (
        "attention",
        {"q": "rand(1, 1, n, 64)", "k": "rand(1, 1, n, 64)", "v": "rand(1, 1, n, 64)"},
        "NN.scaled_dot_product_attention(q, k, v)",
        {"small": 128, "large": 4096},
    ),
    (
        "attention causal",
        {"q": "rand(1, 4, n, 64)", "k": "rand(1, 4, n, 64)", "v": "rand(1, 4, n, 64)"},
        "NN.scaled_dot_product_attention(q, k, v, is_causal=True)",
        {"small": 128, "large": 1024},
    ),
    *(
        (f"{name} float64", {"x": "rand(n, n).double()", "y": "rand(n, n).double()"}, text, ELEMENTWISE)
        for name, text in {
            "add": "x + y",
            "exp": "F.exp(x)",
            "sum dim 1": "x.sum(1)",
            "softmax": "F.softmax(x, -1)",
        }.items()
    ),
    (
        "matmul float64",
        {"x": "rand(n, n).double()", "y": "rand(n, n).double()"},
        "F.matmul(x, y)",
        {"small": 96, "large": 512},
    ),
    *(
        (f"{name} int64", {"x": "randint(1, 9, (n, n))", "y": "randint(1, 9, (n, n))"}, text, ELEMENTWISE)
        for name, text in {"add": "x + y", "mul": "x * y", "sum": "x.sum()", "eq": "x == y"}.items()
    ),
]
NO_BACKWARD = {"argmax dim 1"}


def names():
    """(name, number of the case, size, forward or backward) of all there is to measure."""
    for number, (name, setup, _, sizes) in enumerate(CASES):
        floating = any("rand(" in v and "randint" not in v for v in setup.values())
        for label, n in sizes.items():
            yield f"{name} {label} fwd", number, n, "forward"
            if floating and name not in NO_BACKWARD:
                yield f"{name} {label} bwd", number, n, "backward"


class Side:
    """One framework's side: prepares a case and times it."""

    def __init__(self, module, functional, grad):
        self.names = {"F": module, "NN": functional, "rand": module.rand, "randint": module.randint}
        self.grad = grad

    def prepare(self, number, n, which):
        _, setup, text, _ = CASES[number]
        space = dict(self.names, n=n)
        tensors = {}
        for key, value in setup.items():
            space[key] = tensors[key] = eval(value, space)
        if which == "backward":
            tensors = {k: v.requires_grad_() for k, v in tensors.items() if v.dtype.is_floating_point}
        code = compile(text, "case", "eval")
        if which == "forward":
            self.call = lambda: eval(code, space)
        else:
            y = eval(code, space)
            dy = y.detach() * 0 + 1
            wanted = list(tensors.values())
            self.call = lambda: self.grad(y, wanted, dy, retain_graph=True, allow_unused=True)
        self.count = 1
        for _ in range(2):  # the first time with what is made once: code, caches, memory
            start, calls = time.perf_counter(), 0
            while calls < 2 or time.perf_counter() - start < SLICE_S / 2:
                self.call()
                calls += 1
            self.count = max(1, int(SLICE_S / (time.perf_counter() - start) * calls))

    def seconds(self):
        start = time.perf_counter()
        for _ in range(self.count):
            self.call()
        return (time.perf_counter() - start) / self.count


def serve():
    """PyTorch's side: a request a line, an answer a line."""
    import torch

    torch.set_num_threads(1)
    side = Side(torch, torch.nn.functional, torch.autograd.grad)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = side.prepare(*request) if request else side.seconds()
        except Exception as e:
            answer = f"error: {e}"
        print(json.dumps(answer), flush=True)


def main(words):
    python = os.environ.get("HOLON_BENCH_TORCH_PYTHON")
    if not python:
        return
    import holon as flow

    side = Side(flow, flow.nn.functional, flow.autograd.grad)
    # Arguments that PyTorch orders otherwise are brought into its order.
    peer = subprocess.Popen([python, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(*request):
        print(json.dumps(request), file=peer.stdin, flush=True)
        return json.loads(peer.stdout.readline())

    ratios = []
    for name, *request in names():
        if words and not any(w in name for w in words):
            continue
        try:
            side.prepare(*request)
        except Exception as e:
            print(f"{name}: left out: {type(e).__name__}: {e}", file=sys.stderr)
            continue
        if error := ask(*request):
            print(f"{name}: left out: the peer says {error}", file=sys.stderr)
            continue
        ours, theirs = [], []
        for _ in range(ROUNDS):
            ours.append(side.seconds())
            theirs.append(ask())
        ratio = statistics.median(theirs) / statistics.median(ours)
        ratios.append(ratio)
        print(
            json.dumps(
                {
                    "name": f"ops/{name}",
                    "value": round(statistics.median(ours) * 1e6, 2),
                    "unit": "us",
                    "against": "PyTorch, one thread",
                    "ratio": round(ratio, 3),
                }
            ),
            flush=True,
        )
    if ratios:
        print(
            json.dumps(
                {
                    "name": "ops/median of all",
                    "value": len(ratios),
                    "unit": "cases",
                    "against": "PyTorch, one thread",
                    "ratio": round(statistics.median(ratios), 3),
                }
            ),
            flush=True,
        )
    peer.stdin.close()
    peer.wait()


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve()
    else:
        main(sys.argv[1:])
