#!/usr/bin/env python3
"""An eager step of a small GPT on two ranks, tensor parallel, held to a contract and planned, in turns in one run.

The value is the median step under the contract; the ratio is that of the planned step to it.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TURNS, STEPS = 12, 10


def rank(folder):
    sys.path.insert(0, str(ROOT / "examples" / "gpt"))
    import numpy as np
    from model import GPT, Layout

    import holon as flow

    flow.manual_seed(1)
    model = GPT(2, 64, 4, 32, Layout.over(1, 2))
    optimizer = flow.optim.SGD(model.parameters(), lr=1e-3)
    rng = np.random.default_rng(0)
    batch = model.pair(*(rng.integers(0, 256, (4, 32)) for _ in range(2)))

    def step():
        model.loss(*batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    def timed():
        step()  # layouts are looked up again
        times = []
        for _ in range(STEPS):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        return statistics.median(times) * 1e6

    file = os.path.join(folder, "gpt.contract")
    with flow.contract(file, record=True):
        for _ in range(3):
            step()
    planned, kept = [], []
    for _ in range(TURNS):
        planned.append(timed())
        with flow.contract(file):
            kept.append(timed())
    if flow._C.rank() == 0:
        print(json.dumps([statistics.median(planned), statistics.median(kept)]), flush=True)


def main():
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "holon.distributed.launch", "-n", "2", __file__, "--rank", folder]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    planned, kept = json.loads(done.stdout.splitlines()[-1])
    row = {
        "name": "contract: eager step of a small GPT, 2 ranks",
        "value": round(kept, 1),
        "unit": "us",
        "against": "the same step with the planner",
        "ratio": round(planned / kept, 3),
    }
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    rank(sys.argv[2]) if "--rank" in sys.argv else main()
