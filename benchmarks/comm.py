#!/usr/bin/env python3
"""Tensor.to_global between two processes, beside what a user of other libraries would call, in turns in one run.

Every conversion of a float32 tensor of 4 KiB to 64 MiB is timed on two ranks that have a core each. The value is the
lower quartile of many short turns. A line for each thing to compare with: a bare copy (numpy.copyto, by one process on
touched memory, of the bytes that a rank must write at least), and, where $HOLON_BENCH_TORCH_PYTHON names a Python with
PyTorch, gloo and DTensor there, whose programs take turns with Holon's on the same cores.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import time

SIZES = {"4 KiB": 4 << 10, "256 KiB": 256 << 10, "4 MiB": 4 << 20, "64 MiB": 64 << 20}
CASES = ["S(0) -> B", "S(0) -> S(1)", "rank 0 -> B", "P -> S(0)", "P -> B", "rank 0 -> rank 1", "B -> S(0)"]
# What one rank writes, as a part of the tensor.
WRITTEN = dict.fromkeys(CASES, 1) | {"S(0) -> S(1)": 1 / 2, "P -> S(0)": 1 / 2, "B -> S(0)": 0}
ROUNDS = 5


def calls_per_turn(size):
    return 100 if size <= 64 << 10 else 10 if size <= 1 << 20 else 2 if size <= 4 << 20 else 1


def turns(size):
    return 40 if size <= 1 << 20 else 12 if size <= 4 << 20 else 4


def microseconds(call, size, meet):
    """The times of several turns."""
    n, times = calls_per_turn(size), []
    call()
    for _ in range(turns(size)):
        meet()
        start = time.perf_counter()
        for _ in range(n):
            call()
        times.append((time.perf_counter() - start) / n * 1e6)
    return times


def square(size):
    columns = 1
    while columns * columns < size // 4:
        columns *= 2
    return size // 4 // columns, columns


def serve(rank, cases, meet):
    """Runs the case that each line of stdin names and prints its times, until stdin ends."""
    for line in sys.stdin:
        case, size = json.loads(line)
        call = cases(case, square(size))
        times = microseconds(call, size, meet) if call else []
        if rank == 0:
            print(json.dumps(times), flush=True)


def holon_rank(rank):
    import holon as flow

    both = flow.placement("cpu", [0, 1])
    split, broadcast, partial = flow.sbp.split, flow.sbp.broadcast, flow.sbp.partial_sum
    one = [flow.placement("cpu", [r]) for r in (0, 1)]
    specs = {
        "S(0)": (both, split(0)),
        "S(1)": (both, split(1)),
        "B": (both, broadcast),
        "P": (both, partial),
        "rank 0": (one[0], broadcast),
        "rank 1": (one[1], broadcast),
    }
    barrier = flow.ones(2, placement=both, sbp=split(0))
    kept = {}

    def cases(case, shape):
        source, target = (specs[s] for s in case.split(" -> "))
        if (case, shape) not in kept:
            kept.clear()
            kept[case, shape] = flow.ones(*shape, placement=source[0], sbp=source[1])
        x = kept[case, shape]
        placement, sbp = target
        return lambda: x.to_global(placement, sbp)

    serve(rank, cases, lambda: barrier.to_global(both, broadcast))


def torch_rank(rank, kind):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if kind == "gloo":

        def cases(case, shape):
            full, rows = torch.ones(shape), shape[0] // 2
            half = torch.ones(rows, shape[1])
            if case == "S(0) -> B":
                out = list(torch.empty(shape).chunk(2))
                return lambda: dist.all_gather(out, half)
            if case == "P -> B":
                return lambda: dist.all_reduce(full)
            if case == "rank 0 -> B":
                return lambda: dist.broadcast(full, 0)
            if case == "rank 0 -> rank 1":

                def copy():
                    dist.send(full, 1) if rank == 0 else dist.recv(full, 0)

                return copy
            return None  # the backend has no reduce_scatter, and none of them re-lays

    else:
        from torch.distributed.tensor import DeviceMesh, DTensor, Partial, Replicate, Shard

        mesh = DeviceMesh("cpu", [0, 1])
        states = {"S(0)": [Shard(0)], "S(1)": [Shard(1)], "B": [Replicate()], "P": [Partial()]}

        def cases(case, shape):
            if "rank" in case:
                return None  # a DTensor stays on its mesh
            source, target = case.split(" -> ")
            part = torch.ones(shape[0] // 2, shape[1]) if source == "S(0)" else torch.ones(shape)
            x = DTensor.from_local(part, mesh, states[source], run_check=False)
            wait = getattr(torch.distributed._functional_collectives, "AsyncCollectiveTensor", ())

            def call():
                local = x.redistribute(mesh, states[target]).to_local()
                if isinstance(local, wait):
                    local.wait()

            with torch.no_grad():
                try:
                    call()
                except RuntimeError:
                    return None
            return call

    with torch.no_grad():
        serve(rank, cases, dist.barrier)


class Pair:
    """Two ranks of one program that run cases when asked."""

    def __init__(self, python, kind):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        self.ranks = [
            subprocess.Popen(
                [python, __file__, kind],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | world | {"RANK": str(r), "LOCAL_RANK": str(r)},
            )
            for r in (0, 1)
        ]

    def times(self, case, size):
        for rank in self.ranks:
            rank.stdin.write(json.dumps([case, size]) + "\n")
            rank.stdin.flush()
        line = self.ranks[0].stdout.readline()
        if not line:
            raise RuntimeError(f"{case}: a rank has ended")
        return json.loads(line)

    def close(self):
        for rank in self.ranks:
            rank.stdin.close()
        for rank in self.ranks:
            rank.wait(60)


def bare_copy(bytes_):
    import numpy

    source = numpy.ones(max(int(bytes_) // 4, 1), "f")
    target = numpy.ones_like(source)
    return lambda: numpy.copyto(target, source)


def lower_quartile(times):
    return statistics.quantiles(times, n=4)[0]


def main():
    wanted = sys.argv[1:]
    pairs = {"holon": Pair(sys.executable, "holon")}
    python = os.environ.get("HOLON_BENCH_TORCH_PYTHON")
    probe = [python, "-c", "import torch.distributed.tensor"]
    if python and subprocess.run(probe, capture_output=True).returncode == 0:
        pairs |= {"gloo": Pair(python, "gloo"), "DTensor": Pair(python, "DTensor")}
    for name, size in SIZES.items():
        for case in CASES:
            text = f"to_global {case} {name}, Python"
            if wanted and not any(w in text for w in wanted):
                continue
            found = {}
            copy = bare_copy(WRITTEN[case] * size) if WRITTEN[case] else None
            for _ in range(ROUNDS):
                for kind, pair in pairs.items():
                    if kind == "holon" or size < 64 << 20 or len(found.get(kind, [])) < 3:
                        found.setdefault(kind, []).extend(pair.times(case, size))
                if copy:
                    found.setdefault("a bare copy by numpy", []).extend(microseconds(copy, size, lambda: None))
            ours = lower_quartile(found.pop("holon"))
            row = {"name": text, "value": round(ours, 3), "unit": "us"}
            for kind, times in found.items():
                if times:
                    theirs = lower_quartile(times)
                    found_row = row | {"against": f"{kind}, {theirs:.3f} us", "ratio": round(theirs / ours, 3)}
                    print(json.dumps(found_row), flush=True)
            if not WRITTEN[case]:
                print(json.dumps(row | {"against": "nothing to copy", "ratio": None}), flush=True)
    for pair in pairs.values():
        pair.close()


if __name__ == "__main__":
    if "RANK" not in os.environ:
        sys.exit(main())
    rank = int(os.environ["RANK"])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    holon_rank(rank) if sys.argv[1] == "holon" else torch_rank(rank, sys.argv[1])
