#!/usr/bin/env python3
"""One training step compiled by nn.Graph (forward, backward, communication, update) beside the same step run eagerly
and beside PyTorch: on one rank, on two data-parallel and tensor-parallel, and as a pipeline of two stages with four
micro-batches; the step as a fraction of the arithmetic floor; the memory that training the GPT takes; and what
compiling takes by depth.

Every side is a process a rank, with one thread, that runs a case when asked. Sides take turns; a value is the median of
all turns. PyTorch (gloo) runs in the Python that $HOLON_BENCH_TORCH_PYTHON names; without it its lines are left out.
The arithmetic floor is the work of a step's products at the rate of 1024 x 1024 products, measured in turns with the
steps, on as many ranks. Arguments choose lines by parts of their names: benchmarks/graph.py gpt narrow.
"""

import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import time

import train
from train import PEER, RANK, WORLD, F, Gpt, flow, nn

GFLOP = {"mlp": 0.82, "cnn": 9.3, "gpt": 21.3}  # a step's products, forward and backward
MICRO_BATCHES = 4
TURNS = 6
DEPTHS = (12, 24, 48, 96)
MiB = 2**20


def narrow():
    return nn.Sequential(*(m for _ in range(20) for m in (nn.Linear(64, 64), nn.ReLU())))


MODELS = {kind: parts[:3] for kind, parts in train.KINDS.items()}
MODELS["narrow"] = narrow, train.sgd, lambda: (flow.rand(16, 64), flow.randint(0, 64, [16]))
# kind, layout: what the peer is, steps a turn.
CASES = {
    ("mlp", "1 rank"): ("PyTorch", 20),
    ("cnn", "1 rank"): ("PyTorch", 2),
    ("gpt", "1 rank"): ("PyTorch", 1),
    ("narrow", "1 rank"): ("PyTorch", 100),
    ("mlp", "2 ranks, data-parallel"): ("PyTorch DDP, gloo", 20),
    ("gpt", "2 ranks, data-parallel"): ("PyTorch DDP, gloo", 2),
    ("mlp", "2 ranks, tensor-parallel"): ("PyTorch tensor.parallel, gloo", 20),
    ("gpt", "2 ranks, tensor-parallel"): ("PyTorch tensor.parallel, gloo", 2),
    ("gpt", "2 stages"): (f"PyTorch pipelining, 1F1B, {MICRO_BATCHES} micro-batches, gloo", 2),
}


class Half(nn.Module):
    """The first or the second half of the GPT."""

    def __init__(self, whole, second):
        super().__init__()
        blocks, self.second = list(whole.blocks), second
        half = len(blocks) // 2
        self.blocks = nn.Sequential(*(blocks[half:] if second else blocks[:half]))
        if second:
            self.norm, self.head = whole.norm, whole.head
        else:
            self.token, self.place, self.positions = whole.token, whole.place, whole.positions

    def forward(self, x):
        if self.second:
            return self.head(self.norm(self.blocks(x)))
        return self.blocks(self.token(x) + self.place(self.positions))


def loss_of(scores, classes):
    return F.cross_entropy(scores.reshape(-1, scores.shape[-1]), classes.reshape(-1))


# Holon


class Pipe(nn.Module):
    def __init__(self, whole):
        super().__init__()
        self.first, self.second = Half(whole, False), Half(whole, True)

    def forward(self, x):
        return self.second(self.first(x))


def place(model, where):
    """Everything whole on every rank of a placement, what modules hold besides parameters too."""
    model.to_global(where, flow.sbp.broadcast)
    for part in model.modules():
        for name in ("mask", "positions"):
            if name in vars(part):
                setattr(part, name, getattr(part, name).to_global(where, flow.sbp.broadcast))


def laid_out(kind, layout):
    """Model, inputs, and the placements of a pipeline's stages."""
    make, _, data = MODELS[kind]
    model, (x, y) = make(), data()
    if kind == "gpt":
        y = y.reshape(x.shape)
    if layout == "1 rank":
        return model, x, y, []
    everywhere, whole = flow.placement.all("cpu"), flow.sbp.broadcast
    if layout == "2 stages":
        stages, model = [flow.placement("cpu", [r]) for r in (0, 1)], Pipe(model)
        place(model.first, stages[0])
        place(model.second, stages[1])
        return model, x.to_global(stages[0], whole), y.to_global(stages[1], whole), stages
    place(model, everywhere)
    x, y = x.to_global(everywhere, whole), y.to_global(everywhere, whole)
    if "data" in layout:
        rows = flow.sbp.split(0)
        return model, x.to_global(sbp=rows), y.to_global(sbp=rows), []
    outputs, inputs = flow.sbp.split(0), flow.sbp.split(1)
    columns = ["*.q.*", "*.k.*", "*.v.*", "*.up.*"] if kind == "gpt" else ["0.*"]
    rows = ["*.out.weight", "*.down.weight"] if kind == "gpt" else ["2.weight"]
    model.to_global(sbp=dict.fromkeys(columns, outputs) | dict.fromkeys(rows, inputs) | {"*": whole})
    return model, x, y, []


if not PEER:

    class Step(nn.Graph):
        def __init__(self, model, optimizer, stages=(), recomputed=False, schedule="auto"):
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)
            for part, n in zip((getattr(model, "first", None), getattr(model, "second", None)), range(len(stages))):
                part.to(nn.graph.GraphModule).set_stage(n, stages[n])
            if stages:
                self.config.set_gradient_accumulation_steps(MICRO_BATCHES)
                self.config.pipeline(schedule=schedule)
            if recomputed:
                for block in model.blocks:
                    block.to(nn.graph.GraphModule).activation_checkpointing = True

        def build(self, x, y):
            loss = loss_of(self.model(x), y)
            loss.backward()
            return loss


def eager_step(model, optimizer, x, y):
    def step():
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        optimizer.step()

    return step


def our_step(kind, layout, mode):
    make_optimizer = MODELS[kind][1]
    model, x, y, stages = laid_out(kind, layout)
    optimizer = make_optimizer(model.parameters())
    if mode == "eager":
        return eager_step(model, optimizer, x, y)
    graph = Step(model, optimizer, stages, mode == "recomputed", "1f1b" if mode == "1f1b" else "auto")
    return lambda: graph(x, y)


# PyTorch


def their_step(kind, layout, mode):
    make, make_optimizer, data = MODELS[kind]
    model, (x, y) = make(), data()
    if kind == "gpt":
        y = y.reshape(x.shape)
    if layout == "2 stages":
        return their_pipeline(model, make_optimizer, x, y)
    if "data" in layout:
        model = nn.parallel.DistributedDataParallel(model)
        rows = slice(RANK * len(x) // WORLD, (RANK + 1) * len(x) // WORLD)
        x, y = x[rows], y[rows]
    elif "tensor" in layout:
        model = their_split(kind, model)
        optimizer = (
            flow.optim.AdamW(model.parameters(), lr=3e-4, foreach=False)
            if kind == "gpt"
            else flow.optim.SGD(model.parameters(), lr=0.05, foreach=False)
        )
        return eager_step(model, optimizer, x, y)
    return eager_step(model, make_optimizer(model.parameters()), x, y)


def their_split(kind, model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    if kind == "mlp":
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    else:
        plan = {}
        for i in range(len(model.blocks)):
            plan |= {f"blocks.{i}.{n}": ColwiseParallel() for n in ("q", "k", "v", "up")}
            plan |= {f"blocks.{i}.{n}": RowwiseParallel() for n in ("out", "down")}
    model = parallelize_module(model, init_device_mesh("cpu", (WORLD,)), plan)
    for part in model.modules():
        if hasattr(part, "heads"):
            part.forward = split_block.__get__(part)
    return model


def split_block(self, x):
    """A Block's forward on this rank's heads."""
    b, t, c = x.shape
    h, heads, size = self.n1(x), self.heads // WORLD, c // self.heads
    q, k, v = (f(h).reshape(b, t, heads, size).transpose(1, 2) for f in (self.q, self.k, self.v))
    scores = flow.matmul(q, k.transpose(-2, -1)) * size**-0.5 + self.mask
    y = flow.matmul(F.softmax(scores, -1), v).transpose(1, 2).reshape(b, t, c // WORLD)
    x = x + self.out(y)
    return x + self.down(F.gelu(self.up(self.n2(x))))


def their_pipeline(model, make_optimizer, x, y):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    part = Half(model, RANK == 1)
    schedule = Schedule1F1B(
        PipelineStage(part, RANK, 2, flow.device("cpu")), n_microbatches=MICRO_BATCHES, loss_fn=loss_of
    )
    optimizer = make_optimizer(part.parameters())

    def step():
        optimizer.zero_grad()
        schedule.step(x) if RANK == 0 else schedule.step(target=y, losses=[])
        optimizer.step()

    return step


# Processes that are asked


def serve():
    """Does what each line of stdin asks for, and answers with a line of seconds on rank 0."""
    steps = {}
    product = [flow.rand(1024, 1024) for _ in range(2)]
    for line in sys.stdin:
        kind, layout, mode, inner = json.loads(line)
        key = kind, layout, mode
        if kind == "product":
            step = lambda: flow.matmul(*product)  # noqa: E731
        else:
            if key not in steps:
                steps = {k: s for k, s in steps.items() if k[:2] == key[:2]}
                steps[key] = (their_step if PEER else our_step)(*key)
                steps[key]()
                steps[key]()
            step = steps[key]
        start = time.perf_counter()
        for _ in range(inner):
            step()
        seconds = (time.perf_counter() - start) / inner
        if RANK == 0:
            print(json.dumps(seconds), flush=True)


def resident_mib():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize() / MiB


def peak_of_training(mode):
    """Peak resident memory of training the GPT over what the process has after import and data."""
    _, make_optimizer, data = MODELS["gpt"]
    x, y = data()
    y = y.reshape(x.shape)
    flow.matmul(x.to(flow.float32), x.to(flow.float32).transpose(0, 1))  # whatever a first product brings
    before = resident_mib()
    model = Gpt()
    optimizer = make_optimizer(model.parameters())
    if mode in ("eager", "torch"):
        step = eager_step(model, optimizer, x, y)
    else:
        graph = Step(model, optimizer, recomputed=mode == "recomputed")
        step = lambda: graph(x, y)  # noqa: E731
    for _ in range(4):
        step()
    print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before), flush=True)


def compile_gpt(depth):
    """Seconds from the first line of build() to the plan, and the numbers of nodes captured."""
    model = Gpt(layers=depth, width=64, heads=4, length=32)
    graph = Step(model, train.adamw(model.parameters()))
    x, y = flow.randint(0, 256, [2, 32]), flow.randint(0, 256, [2, 32])
    start = time.perf_counter()
    graph.compile(x, y)
    print(json.dumps([time.perf_counter() - start, graph.stats()["captured_nodes"]]), flush=True)


def worker(*arguments):
    if PEER:
        flow.set_num_threads(1)
        if WORLD > 1:
            flow.distributed.init_process_group("gloo")
    if not arguments:
        serve()
    elif arguments[0] == "memory":
        peak_of_training(arguments[1])
    else:
        compile_gpt(int(arguments[1]))
    if PEER and WORLD > 1:
        flow.distributed.destroy_process_group()


class Side:
    """The ranks of one program."""

    def __init__(self, python, world, *flags):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = str(s.getsockname()[1])
        common = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
        self.ranks = [
            subprocess.Popen(
                [python, __file__, "--worker", *flags],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | common | {"RANK": str(r), "LOCAL_RANK": str(r)},
            )
            for r in range(world)
        ]

    def seconds(self, *case):
        for rank in self.ranks:
            rank.stdin.write(json.dumps(case) + "\n")
            rank.stdin.flush()
        line = self.ranks[0].stdout.readline()
        if not line:
            raise RuntimeError(f"{case}: a rank has ended")
        return json.loads(line)

    def close(self):
        for rank in self.ranks:
            rank.stdin.close()
        for rank in self.ranks:
            try:
                rank.wait(30)
            except subprocess.TimeoutExpired:
                rank.kill()


def answer(python, *flags):
    done = subprocess.run(
        [python, __file__, "--worker", *flags],
        capture_output=True,
        text=True,
        env=dict(os.environ, OMP_NUM_THREADS="1"),
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.strip().splitlines()[-1])


def emit(name, value, unit, against, ratio):
    print(
        json.dumps(
            {
                "name": f"graph: {name}",
                "value": round(value, 3),
                "unit": unit,
                "against": against,
                "ratio": None if ratio is None else round(ratio, 3),
            }
        ),
        flush=True,
    )


def compare(kind, layout, sides):
    peer, inner = CASES[kind, layout]
    asked = {
        "graph": ("holon", "graph", inner),
        "PyTorch": ("torch", "eager", inner),
        "eager": ("holon", "eager", inner),
        "product": ("holon", "", 5),
    }
    if layout == "2 stages":
        del asked["eager"]  # eager ranks have no schedule: one waits for the other
        asked["1F1B"] = ("holon", "1f1b", inner)
    times = {name: [] for name in asked if asked[name][0] in sides}
    for _ in range(TURNS):
        for name, found in times.items():
            side, mode, n = asked[name]
            found.append(sides[side].seconds("product" if name == "product" else kind, layout, mode, n))
    found = {name: statistics.median(t) for name, t in times.items()}
    ours, world, name = found["graph"], len(sides["holon"].ranks), f"step of {kind}, {layout}"
    if "eager" in found:
        emit(name, ours * 1e3, "ms", f"eager, {found['eager'] * 1e3:.3g} ms", found["eager"] / ours)
    if "PyTorch" in found:
        emit(name, ours * 1e3, "ms", f"{peer}, {found['PyTorch'] * 1e3:.3g} ms", found["PyTorch"] / ours)
    if "1F1B" in found:  # the graph chooses zero-bubble by itself
        emit(name, ours * 1e3, "ms", f"the same by 1F1B, {found['1F1B'] * 1e3:.3g} ms", found["1F1B"] / ours)
        if "PyTorch" in found:
            emit(
                f"{name}, by 1F1B",
                found["1F1B"] * 1e3,
                "ms",
                f"{peer}, {found['PyTorch'] * 1e3:.3g} ms",
                found["PyTorch"] / found["1F1B"],
            )
    if kind in GFLOP:
        rate = 2 * 1024**3 / 1e9 / found["product"]
        floor = GFLOP[kind] / rate / world
        emit(name, ours * 1e3, "ms", f"the arithmetic at {rate:.0f} GFLOP/s a rank, {floor * 1e3:.3g} ms", floor / ours)


def steps(wanted, peer):
    for world in (1, 2):
        cases = [c for c in CASES if (1 if c[1] == "1 rank" else 2) == world and wanted("step of {}, {}".format(*c))]
        if not cases:
            continue
        sides = {"holon": Side(sys.executable, world)} | ({"torch": Side(peer, world, "--peer")} if peer else {})
        try:
            for case in cases:
                compare(*case, sides)
        finally:
            for side in sides.values():
                side.close()


def memory(wanted, peer):
    if not wanted("memory of training gpt"):
        return
    theirs = answer(peer, "memory", "torch", "--peer") if peer else None
    eager = answer(sys.executable, "memory", "eager")
    for mode, text in (("graph", ""), ("recomputed", ", blocks recomputed")):
        ours = answer(sys.executable, "memory", mode)
        emit(f"memory of training gpt{text}", ours, "MiB", f"eager, {eager:.0f} MiB", eager / ours)
        if peer:
            emit(f"memory of training gpt{text}", ours, "MiB", f"PyTorch, {theirs:.0f} MiB", theirs / ours)


def compiling(wanted):
    if not wanted("compiling gpt"):
        return
    first = None
    for depth in DEPTHS:
        seconds, nodes = min(answer(sys.executable, "compile", str(depth)) for _ in range(3))
        each = seconds / nodes * 1e6
        first = first or each
        emit(
            f"compiling gpt of {depth} layers, {nodes} nodes, {seconds:.3f} s",
            each,
            "us a node",
            "a goal of 20 us",
            20 / each,
        )
    emit("compiling gpt, time of a node", each, "us a node", f"with {DEPTHS[0]} layers, {first:.1f} us", first / each)


def main():
    asked = sys.argv[1:]
    peer = os.environ.get("HOLON_BENCH_TORCH_PYTHON")
    probe = [peer, "-c", "import torch.distributed.tensor"]
    if peer and subprocess.run(probe, capture_output=True).returncode:
        peer = None

    def wanted(name):
        return not asked or any(a in name for a in asked)

    steps(wanted, peer)
    memory(wanted, peer)
    compiling(wanted)


if __name__ == "__main__":
    worker(*(a for a in sys.argv[1:] if not a.startswith("--"))) if "--worker" in sys.argv else main()
