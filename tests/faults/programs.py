"""Random programs over global tensors, the same on every rank for a seed,
that check their values against numpy as they go."""

import os
import random
import re
import signal
import sys
import threading
import time

import numpy as np

import holon as flow


class Program:
    def __init__(self, seed, world):
        self.random = random.Random(seed)  # decides alike on every rank
        self.world = world
        self.rank = flow.env.get_rank()
        self.pool = []  # (tensor, its value)
        self.step = 0

    def placement(self):
        ranks = self.random.sample(range(self.world), self.random.randint(1, self.world))
        if self.random.random() < 0.4:
            ranks = list(range(self.world))
        if len(ranks) == 4 and self.random.random() < 0.5:
            ranks = [ranks[:2], ranks[2:]]
        return flow.placement("cpu", ranks=ranks)

    def sbp(self, placement, ndim):
        choices = [flow.sbp.broadcast, flow.sbp.partial_sum, *(flow.sbp.split(i) for i in range(ndim))]
        return [self.random.choice(choices) for _ in placement.hierarchy]

    def shape(self):
        return [self.random.choice([0, 1, 2, 3, 5, 8, 40]) for _ in range(self.random.randint(1, 3))]

    def make(self, shape=None, placement=None):
        shape = self.shape() if shape is None else shape
        placement = placement or self.placement()
        value = np.array([self.random.randint(-3, 3) for _ in range(int(np.prod(shape)))], np.float32).reshape(shape)
        x = flow.tensor(value, placement=placement, sbp=[flow.sbp.broadcast] * len(placement.hierarchy))
        return x.to_global(placement, self.sbp(placement, len(shape))), value

    def pick(self):
        if not self.pool or self.random.random() < 0.15:
            self.pool.append(self.make())
        return self.random.choice(self.pool)

    def check(self, x, value):
        placement = x.placement
        whole = x.to_global(placement, [flow.sbp.broadcast] * len(placement.hierarchy))
        if self.rank in placement.ranks:
            assert np.array_equal(whole.to_local().numpy(), value), f"step {self.step}: wrong values"

    def one_step(self):
        self.step += 1
        kind = self.random.choice(["move", "move", "move", "other placement", "add", "sum", "matmul", "check", "item"])
        x, value = self.pick()
        if kind == "move":
            self.pool.append((x.to_global(x.placement, self.sbp(x.placement, value.ndim)), value))
        elif kind == "other placement":
            to = self.placement()
            self.pool.append((x.to_global(to, self.sbp(to, value.ndim)), value))
        elif kind == "add":
            y, other = self.make(value.shape, x.placement)
            self.pool.append((x + y, value + other))
        elif kind == "sum":
            dim = self.random.randrange(value.ndim)
            self.pool.append((flow.sum(x, dim, True), value.sum(dim, keepdims=True)))
        elif kind == "matmul":
            a, left = self.make([3, 5], x.placement)
            b, right = self.make([5, 4], x.placement)
            self.pool.append((flow.matmul(a, b), left @ right))
        elif kind == "check":
            self.check(x, value)
        elif value.size:
            total = flow.sum(x)
            assert total.item() == value.sum(), f"step {self.step}: wrong sum"
        self.pool = [(t, v) for t, v in self.pool[-6:] if v.size == 0 or np.abs(v).max() < 1e4]

    def everybody(self):
        """Something that no rank comes through without all the others."""
        world = flow.placement("cpu", ranks=list(range(self.world)))
        flow.ones(self.world, placement=world, sbp=flow.sbp.split(0)).to_global(world, flow.sbp.broadcast)


def everybody_else(program):
    world = flow.placement("cpu", ranks=list(range(program.world)))
    flow.ones(program.world, 3, placement=world, sbp=flow.sbp.split(0)).to_global(world, flow.sbp.split(1))


def run(seed, world, steps, fault=None, culprit=None, at=None):
    """Runs a program; at step `at` the rank `culprit` does what `fault` says."""
    program = Program(seed, world)
    for i in range(steps):
        if i == at:
            if program.rank == culprit:
                print(f"fault at {time.monotonic()}", file=sys.stderr, flush=True)
                misbehave(program, fault)
            if not (program.rank == culprit and fault in ("skip", "order")):
                program.everybody()
                everybody_else(program)
        program.one_step()
    program.everybody()


def misbehave(program, fault):
    world = flow.placement("cpu", ranks=list(range(program.world)))
    if fault == "extra":
        flow.ones(3, program.world, placement=world, sbp=flow.sbp.split(1)).to_global(world, flow.sbp.split(0))
    elif fault == "order":
        everybody_else(program)
        program.everybody()
    elif fault == "shape":
        flow.ones(program.world + 1, placement=world, sbp=flow.sbp.split(0)).to_global(world, flow.sbp.broadcast)
    elif fault == "dtype":
        flow.ones(program.world, placement=world, sbp=flow.sbp.split(0), dtype=flow.float64).to_global(
            world, flow.sbp.broadcast
        )
    elif fault == "sleep":
        time.sleep(60)
    elif fault == "spin":
        while True:
            pass
    elif fault == "keeps the lock":
        re.match("(a+)+$", "a" * 64 + "b")  # takes for ever, in C, and no other thread of Python runs meanwhile
    elif fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "kills itself":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "raise":
        raise ValueError("the milk is sour")
    elif fault == "raise elsewhere":
        threading.Thread(target=lambda: {}["milk"]).start()
        time.sleep(60)
    elif fault == "exit 0":
        sys.exit(0)
    elif fault == "exit 3":
        sys.exit(3)
    elif fault == "_exit":
        os._exit(3)
    elif fault != "skip":
        raise AssertionError(f"no fault {fault}")
