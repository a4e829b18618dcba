#!/usr/bin/env python3
"""Calls every op with random arguments: shapes, dtypes, values, sbps and attributes, most of them wrong.

  fuzz_ops.py [--seconds S] [--seed N] [--calls N] [OP...]

A call may give a result or raise one of the errors that users are promised; anything else is a failure, and is printed
with the seed that repeats it. The call that runs is named in the file $HOLON_FUZZ_LOG before it begins, so that a crash
tells what it was. Every result is read to the end, its dtype and shape are checked, and where a gradient is recorded,
backward runs.
"""

import argparse
import faulthandler
import math
import os
import random
import resource
import sys
import time

import numpy as np

import holon as flow

ALLOWED = (
    ValueError,
    TypeError,
    IndexError,
    RuntimeError,
    NotImplementedError,
    MemoryError,
    OverflowError,
    AttributeError,
)
DTYPES = [
    getattr(flow, n) for n in ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool")
]
SIZES = (0, 1, 1, 2, 3, 4, 5, 7)
TEXTS = (
    "mean",
    "sum",
    "none",
    "constant",
    "reflect",
    "replicate",
    "circular",
    "tanh",
    "nearest",
    "bilinear",
    "bicubic",
    "area",
    "ij",
    "xy",
    "add",
    "multiply",
    "same",
    "valid",
    "fro",
    "nuc",
    "trunc",
    "floor",
    "relu",
    "ij,jk->ik",
    "ii->i",
    "...i,i->...",
    "bij,bjk",
    "",
    "i,j->",
    "Z",
)
# They fill or create by size alone: sizes are kept small, so that the machine's memory is not what is tested.
BIG = [2**31, 2**31 + 1, 2**40, 2**62, 2**63 - 1, -(2**63)]


class Maker:
    huge = True  # numbers near the ends of int64 among the attributes

    def __init__(self, rng, world):
        self.rng, self.world = rng, world
        self.base = self.shape()
        self.dtype = rng.choice(DTYPES[:2] if rng.random() < 0.6 else DTYPES)

    def shape(self):
        return tuple(self.rng.choice(SIZES) for _ in range(self.rng.choice((0, 1, 1, 2, 2, 2, 3, 4, 5))))

    def related_shape(self):
        rng, s = self.rng, list(self.base)
        kind = rng.random()
        if kind < 0.55 or not s:
            return tuple(s)
        if kind < 0.7:
            return tuple(s[rng.randrange(len(s)) :])
        if kind < 0.8:
            return tuple(1 if rng.random() < 0.5 else n for n in s)
        if kind < 0.9:
            return (s[0],)
        return self.shape()

    def values(self, shape, dtype):
        rng = np.random.default_rng(self.rng.randrange(2**32))
        if dtype == flow.bool:
            return rng.integers(0, 2, shape).astype(bool)
        if not dtype.is_floating_point:
            # Mostly indices that fit, now and then some that do not.
            low, high = self.rng.choice(((0, 1), (0, 2), (0, 3), (0, 3), (-2, 5), (-100, 1000)))
            if dtype == flow.uint8:
                low, high = 0, min(high, 255)
            return rng.integers(low, min(high, 127) if dtype == flow.int8 else high, shape)
        v = rng.normal(size=shape) * self.rng.choice((1, 1, 1, 100, 1e30))
        if self.rng.random() < 0.1 and v.size:
            v.flat[rng.integers(v.size)] = self.rng.choice((math.nan, math.inf, -math.inf, -0.0))
        return v

    def tensor(self, index=False):
        rng = self.rng
        dtype = self.dtype if rng.random() < 0.75 else rng.choice(DTYPES)
        if index and rng.random() < 0.8:
            dtype = rng.choice((flow.int64, flow.int64, flow.int32))
        shape = self.related_shape()
        t = (
            flow.tensor(self.values(shape, dtype).astype(np.float64)).to(dtype)
            if dtype != flow.bool
            else flow.tensor(self.values(shape, dtype))
        )
        if self.world:
            sbp = rng.choice(
                [flow.sbp.broadcast] * 2
                + [flow.sbp.split(a) for a in range(len(shape))]
                + ([flow.sbp.partial_sum] if dtype.is_floating_point else [])
            )
            t = t.to_global(self.world, flow.sbp.broadcast).to_global(self.world, sbp)
        elif len(shape) > 1 and rng.random() < 0.2:
            t = t.transpose(0, len(shape) - 1)
        elif shape and shape[0] > 2 and rng.random() < 0.1:
            t = t[1::2]
        if dtype.is_floating_point and rng.random() < 0.4:
            t.requires_grad_()
        return t

    def int(self):
        rng = self.rng
        return (
            rng.choice(BIG)
            if self.huge and rng.random() < 0.03
            else rng.choice((-3, -2, -1, -1, 0, 0, 0, 1, 1, 1, 2, 3, 5))
        )

    def ints(self):
        rng = self.rng
        if rng.random() < 0.2:
            return self.int()
        if rng.random() < 0.4:
            return list(self.related_shape())
        return [self.int() for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4)))]

    def value(self, arg):
        rng, kind = self.rng, arg["type"]
        if arg["optional"] and rng.random() < 0.3:
            return None
        if rng.random() < 0.02:
            return rng.choice((None, "x", [], object(), 1j, -1))
        if kind == "Tensor":
            return self.tensor(arg["name"] in ("index", "indices", "target"))
        if kind == "Tensor[]":
            return [self.tensor() for _ in range(rng.choice((0, 1, 2, 2, 3)))]
        if kind == "int":
            return self.int()
        if kind in ("float", "Scalar"):
            return rng.choice((0.0, 1.0, 0.5, -1.0, 2, 3, -2, True, 1e-5, math.inf, math.nan, 1e300, 10**18))
        if kind == "bool":
            return rng.random() < 0.5
        if kind == "str":
            return rng.choice(TEXTS)
        if kind == "dtype":
            return rng.choice(DTYPES)
        if kind == "device":
            return "cpu"
        if kind == "placement":
            return self.world
        if kind == "sbp":
            return flow.sbp.split(rng.choice((0, 1, 2))) if rng.random() < 0.6 else flow.sbp.broadcast
        return self.ints()


def shown(v):
    if isinstance(v, flow.Tensor):
        where = f" {v.sbp}" if v.is_global else ""
        return f"<{str(v.dtype).split('.')[-1]}{list(v.shape)}{where}{' grad' if v.requires_grad else ''}>"
    if isinstance(v, list):
        return "[" + ", ".join(map(shown, v)) + "]"
    return repr(v)


MOST = 1 << 24  # elements that are read of a result: an expanded tensor may have 2**62, which lie in no memory


def read(result):
    """Every element of a result; what is no tensor has none."""
    if isinstance(result, (list, tuple)):
        for r in result:
            read(r)
    elif isinstance(result, flow.Tensor) and result.numel() <= MOST:
        numbers = (
            result.detach().numpy()
            if result.dtype not in (flow.float16, flow.bfloat16)
            else result.detach().float().numpy()
        )
        assert tuple(numbers.shape) == tuple(result.shape), f"shape {result.shape}, data {numbers.shape}"
        np.asarray(numbers).sum()


def roots(result):
    parts = result if isinstance(result, (list, tuple)) else [result]
    return [r for r in parts if isinstance(r, flow.Tensor) and r.requires_grad and r.numel() <= MOST]


def one_call(op, seed, world, log):
    """Returns what is wrong with this call, or None."""
    rng = random.Random(seed)
    maker = Maker(rng, world)
    positional, keywords = [], {}
    for arg in op["args"]:
        needed = arg["default"] is None and not arg["optional"]
        if not needed and rng.random() < 0.5:
            continue
        value = maker.value(arg)
        if (
            arg["keyword_only"]
            or keywords
            or (not needed and rng.random() < 0.5)
            or len(positional) < op["args"].index(arg)
        ):
            keywords[arg["name"]] = value
        else:
            positional.append(value)
    in_place = op["in_place"] and rng.random() < 0.2
    name = op["name"] + ("_" if in_place else "")
    given = [*map(shown, positional), *(f"{k}={shown(v)}" for k, v in keywords.items())]
    text = f"{name}({', '.join(given)})  # seed {seed}"
    faulthandler.dump_traceback_later(60, exit=True)  # a call that hangs is a failure
    if log:
        log.seek(0)
        log.truncate()
        log.write(text + "\n")
        log.flush()
    try:
        result = flow._C.find_op_function(name)(*positional, **keywords)
        read(result)
        for r in roots(result):
            r.sum().backward()
    except ALLOWED as e:
        if not str(e) and not isinstance(e, MemoryError):
            return f"{text}: {type(e).__name__} without a word"
        if "internal" in str(e).lower() or "broken promise" in str(e).lower():
            return f"{text}: {e}"
        return None
    except Exception as e:
        return f"{text}: {type(e).__name__}: {e}"
    return None


def limit_memory():
    """A call that asks for gigabytes gets an error, not the machine's memory.
    (AddressSanitizer has a limit of its own.)"""
    if "ASAN_OPTIONS" in os.environ:
        return
    with open("/proc/self/statm") as f:
        now = int(f.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (3 << 30), now + (3 << 30)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calls", type=int, default=10**9)
    parser.add_argument("--slow", type=float, help="name the calls that take longer than so many seconds")
    parser.add_argument("--no-huge", action="store_true", help="no numbers near the ends of int64")
    parser.add_argument("--local", action="store_true", help="no global tensors")
    parser.add_argument("ops", nargs="*")
    args = parser.parse_args()
    limit_memory()
    Maker.huge = not args.no_huge
    ops = [op for op in flow._C.op_table() if (op["name"] in args.ops if args.ops else op["function"] or op["method"])]
    log = open(os.environ["HOLON_FUZZ_LOG"], "w") if "HOLON_FUZZ_LOG" in os.environ else None
    end, calls, failures, seed = time.monotonic() + args.seconds, 0, [], args.seed * 10_000_019
    while time.monotonic() < end and calls < args.calls and len(failures) < 30:
        for op in ops:
            seed += 1
            calls += 1
            begin = time.monotonic()
            if args.local or random.Random(seed).random() < 0.7:
                wrong = one_call(op, seed, None, log)
            else:
                # A world for each call: what one rank alone refuses must not reach into the next.
                def run(rank, op=op, seed=seed):
                    return one_call(op, seed, flow.placement("cpu", [0, 1]), log if rank == 0 else None)

                try:
                    wrong = next(filter(None, flow.run_ranks(2, run)), None)
                except ALLOWED as e:
                    wrong = str(e) if "internal" in str(e).lower() else None
            if args.slow and time.monotonic() - begin > args.slow:
                print(f"{time.monotonic() - begin:.1f} s: {op['name']}, seed {seed}", flush=True)
            if wrong:
                failures.append(wrong)
                print(wrong, flush=True)
            if time.monotonic() > end or calls >= args.calls:
                break
    print(f"{calls} calls of {len(ops)} ops, {len(failures)} failures", flush=True)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
