"""Part D: where the time of a GPT-2 training step goes, by kernel.

python -m check_device.profile_step [--small] --folder FOLDER torch compiled|eager
    by PyTorch's profiler, which sees the kernels of the whole process; a table goes to FOLDER
nsys ... python -m check_device.profile_step [--small] nsys|ncu compiled|eager
    the steps that NVIDIA's profilers are to look at, between cuProfilerStart and cuProfilerStop"""

import argparse
import ctypes
import json
from pathlib import Path

import holon as flow

from .benchmark import benchmark

STEPS = 3


def table(events, steps):
    """Lines of (microseconds a step, share, calls a step, kernel), the longest first."""
    total = sum(e.self_device_time_total or e.self_cpu_time_total for e in events) or 1
    rows = [(e.self_device_time_total or e.self_cpu_time_total, e.count, e.key) for e in events]
    for time_us, count, name in sorted(rows, reverse=True):
        yield time_us / steps, time_us / total, count / steps, name


def by_torch(step, kind, folder):
    import torch

    kinds = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        torch.cuda.init()
        kinds = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        for _ in range(STEPS):
            step()
        torch.ones(1).sum()  # something of torch's own, which without a device is all there is to see
        flow.cuda.synchronize()
    rows = list(table(profile.key_averages(), STEPS))
    with open(folder / f"kernels-{kind}.txt", "w") as file:
        for us, share, count, name in rows:
            file.write(f"{us:10.1f} us {share:6.1%} {count:8.1f} x {name}\n")
    for us, share, count, name in rows[:25]:
        print(
            json.dumps({"kernel": name[:200], "us_a_step": round(us, 1), "share": round(share, 4), "calls": count}),
            flush=True,
        )
    assert rows, "the profiler saw no kernel"


def under_a_profiler(step):
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        start, stop = driver.cuProfilerStart, driver.cuProfilerStop
    except OSError:  # the emulator
        start = stop = lambda: 0
    start()
    step()
    flow.cuda.synchronize()
    stop()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("tool", choices=["torch", "nsys", "ncu"])
    parser.add_argument("kind", choices=["compiled", "eager"])
    args = parser.parse_args()
    program = benchmark()
    step = program.Gpt2(flow, *program.sizes_of_gpt2(args.small)).step(args.kind == "compiled")
    for _ in range(3):  # compiled, recorded, tuned
        step()
    flow.cuda.synchronize()
    if args.tool == "torch":
        by_torch(step, args.kind, args.folder)
    else:
        under_a_profiler(step)


if __name__ == "__main__":
    main()
