#!/usr/bin/env python3
"""What one op costs beside its kernel: 4x4 tensors, local and global (one rank), with and without recording.

With --peer this script times PyTorch instead and prints {"name": microseconds}; the benchmark runs it so in the Python
that $HOLON_BENCH_TORCH_PYTHON names, and compares with numpy.add where there is none.
"""

import json
import os
import statistics
import subprocess
import sys
import time

OPS = ("add", "matmul", "relu")


def microseconds(f, calls=2000, repeats=15):
    times = []
    for i in range(repeats + 2):
        start = time.perf_counter()
        for _ in range(calls):
            f()
        if i > 1:
            times.append((time.perf_counter() - start) / calls * 1e6)
    return statistics.median(times)


def measure(flow, x, y, no_grad):
    """Microseconds of each op on x and y, under no_grad and recording for backward, and of its backward alone."""
    found = {}
    for mode in ("no_grad", "recording"):
        a = x.detach().requires_grad_() if mode == "recording" else x
        calls = {"add": lambda: a + y, "matmul": lambda: flow.matmul(a, y), "relu": lambda: flow.relu(a)}
        for op in OPS:
            if mode == "no_grad":
                with no_grad():
                    found[f"{op} {mode}"] = microseconds(calls[op])
            else:
                found[f"{op} {mode}"] = microseconds(calls[op])
                z = calls[op]()
                dz = z.detach()
                found[f"{op} backward"] = microseconds(lambda: flow.autograd.grad(z, a, dz, retain_graph=True))
    return found


def peer():
    import torch

    torch.set_num_threads(1)
    print(json.dumps(measure(torch, torch.rand(4, 4), torch.rand(4, 4), torch.no_grad)))


def main():
    import numpy

    import holon as flow

    where = {"placement": flow.placement("cpu", [0]), "sbp": flow.sbp.broadcast}
    ours = {
        "local": measure(flow, flow.rand(4, 4), flow.rand(4, 4), flow.no_grad),
        "global": measure(flow, flow.rand(4, 4, **where), flow.rand(4, 4, **where), flow.no_grad),
    }
    python = os.environ.get("HOLON_BENCH_TORCH_PYTHON")
    if python:
        done = subprocess.run([python, __file__, "--peer"], capture_output=True, text=True)
        base, against = (json.loads(done.stdout), "PyTorch, local") if done.returncode == 0 else (None, None)
    else:
        base = None
    if base is None:
        a, b = numpy.ones((4, 4), "f"), numpy.ones((4, 4), "f")
        forward = [name for name in ours["local"] if "backward" not in name]
        base, against = dict.fromkeys(forward, microseconds(lambda: a + b)), "numpy.add 4x4"
    for kind, figures in ours.items():
        for name, value in figures.items():
            if name not in base:
                continue
            print(
                json.dumps(
                    {
                        "name": f"dispatch: {kind} {name}",
                        "value": round(value, 3),
                        "unit": "us",
                        "against": against,
                        "ratio": round(base[name] / value, 3),
                    }
                ),
                flush=True,
            )


if __name__ == "__main__":
    peer() if "--peer" in sys.argv else main()
