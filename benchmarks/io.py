#!/usr/bin/env python3
"""Saving, loading and moving the state of a job of two ranks, against the disk (dd) and the memory (memcpy), in the
same run.

dd writes and reads as many bytes, in two processes at once, and like a save waits until they are on the disk. memcpy is
NumPy's copy of this rank's bytes, on both ranks at once, into memory that is there, unless it says otherwise: a
relayout frees an old part only when the new one is made, and the system clears each new page first. One JSON object a
line.
"""

import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RANKS = 2
TENSORS, ROWS, COLUMNS = 16, 2048, 4096  # 512 MiB of float32
BYTES = TENSORS * ROWS * COLUMNS * 4
REPEATS = 5


def emit(name, value, unit, against, ratio):
    line = {"name": name, "value": round(value, 6), "unit": unit, "against": against, "ratio": round(ratio, 3)}
    print(json.dumps(line), flush=True)


def rank(folder):
    import numpy as np

    import holon as flow

    B, S = flow.sbp.broadcast, flow.sbp.split
    everywhere = flow.placement.all("cpu")
    me = flow.env.get_rank()

    def together(f, before=None):
        """Median seconds of the slower rank; of f's, if it returns seconds. before() is not counted."""
        times = []
        for _ in range(REPEATS):
            if before:
                before()
            flow.comm.barrier()
            start = time.perf_counter()
            own = f()
            times.append(own if own is not None else time.perf_counter() - start)
        slowest = flow.tensor(times, dtype=flow.float64).to_global(everywhere, S(0)).numpy().reshape(RANKS, -1)
        return statistics.median(slowest.max(0))

    def dd(*arguments):
        subprocess.run(["dd", "bs=4M", "status=none", *arguments], check=True)

    def forget(*files):
        """Takes the files, which are on the disk, out of the page cache."""
        for name in files:
            with open(name, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def memcpy(bytes):
        source, target = np.ones(bytes // 4, "f4"), np.zeros(bytes // 4, "f4")
        return together(lambda: np.copyto(target, source))

    def note(name, seconds, against, other):
        if me == 0:
            emit(name, BYTES / 2**30 / seconds, "GiB/s", against, other / seconds)

    tensors = {str(i): flow.ones(ROWS, COLUMNS, placement=everywhere, sbp=S(0)) * (i + 1) for i in range(TENSORS)}
    mine = BYTES // RANKS
    raw, parts, steps = f"{folder}/raw{me}", f"{folder}/parts", f"{folder}/steps"

    disk = together(lambda: dd("if=/dev/zero", f"of={raw}", f"count={mine >> 22}", "conv=fsync"))
    note("io: save 512 MiB, 2 ranks", together(lambda: flow.save(tensors, parts)), "dd, 2 processes, fsync", disk)
    cold = together(lambda: dd(f"if={raw}", "of=/dev/null"), lambda: forget(raw))
    load = together(
        lambda: flow.load(parts, map_location=everywhere, sbp=S(0)) and None, lambda: forget(*Path(parts).iterdir())
    )
    note("io: load 512 MiB from the disk, 2 ranks, as it was saved", load, "dd, 2 processes", cold)
    disk = together(lambda: dd(f"if={raw}", "of=/dev/null"))
    for name, where, sbp in [("as it was saved", everywhere, S(0)), ("split along another axis", everywhere, S(1))]:
        load = together(lambda where=where, sbp=sbp: flow.load(parts, map_location=where, sbp=sbp) and None)
        note(f"io: load 512 MiB from the page cache, 2 ranks, {name}", load, "dd, 2 processes", disk)
        before = flow._C.bytes_read()
        flow.load(parts, map_location=where, sbp=sbp)
        read = float(flow.tensor(flow._C.bytes_read() - before).to_global(everywhere, flow.sbp.partial_sum))
        if me == 0:
            emit(f"io: bytes read, {name}", read / 2**20, "MiB", "the bytes needed", BYTES / read)

    module = flow.nn.Module()
    for name, t in tensors.items():
        module.register_buffer(name, t)
    checkpoints = flow.checkpoint.Checkpointer(steps, keep=1, asynchronous=True, module=module)
    number = iter(range(1000))

    def stop():
        checkpoints.wait()
        flow.comm.barrier()
        start = time.perf_counter()
        checkpoints.save(next(number))
        return time.perf_counter() - start

    copy = memcpy(mine)
    note("io: an asynchronous save stops 512 MiB, 2 ranks", together(stop), "memcpy of them", copy)
    checkpoints.wait()
    flow.comm.barrier()
    if me == 0:
        shutil.rmtree(parts), shutil.rmtree(steps)
    os.remove(raw)
    for name, t in tensors.items():
        module.register_buffer(f"{name} again", t * 1)  # 1 GiB

    first, second = (flow.placement("cpu", [r]) for r in range(RANKS))
    flow.relayout(module, (first, B))
    for name, places, sizes in [
        ("rank 0 -> rank 1 -> rank 0", [(second, B), (first, B)], [0, 2 * BYTES]),
        ("S(0) -> S(1) -> S(0)", [(everywhere, S(1)), (everywhere, S(0))], [BYTES, BYTES]),
        ("S(0) -> B", [(everywhere, B), (everywhere, S(0))], [2 * BYTES, 2 * BYTES]),
    ]:
        flow.relayout(module, places[-1])
        times = [[], []]
        for _ in range(REPEATS):
            for place, kept in zip(places, times):
                flow.comm.barrier()
                start = time.perf_counter()
                flow.relayout(module, place)
                flow.comm.barrier()
                kept.append(time.perf_counter() - start)
        seconds = statistics.median(times[0])
        source = np.ones(max(sizes[me], 4) // 4, "f4")
        for against, target in [
            ("memcpy of each rank's new parts", np.zeros_like(source)),
            ("memcpy of each rank's new parts into shared memory that is new", None),
        ]:
            copies = []
            for _ in range(REPEATS):
                new = None if target is not None else mmap.mmap(-1, source.nbytes)
                flow.comm.barrier()
                start = time.perf_counter()
                np.copyto(np.frombuffer(new, "f4") if new is not None else target, source)
                flow.comm.barrier()
                copies.append(time.perf_counter() - start)
            if me == 0:
                emit(f"io: relayout of 1 GiB, {name}", seconds, "s", against, statistics.median(copies) / seconds)
        del source, target


def main():
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    with tempfile.TemporaryDirectory(
        prefix="holon-io-", dir=os.environ.get("HOLON_BENCH_FOLDER", ROOT / "build")
    ) as folder:
        command = [sys.executable, "-m", "holon.distributed.launch", "--nproc_per_node", RANKS, __file__, folder]
        sys.exit(subprocess.run([str(c) for c in command], env=environment).returncode)


if __name__ == "__main__":
    rank(sys.argv[1]) if len(sys.argv) > 1 else main()
