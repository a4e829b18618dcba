"""Chains of element-wise ops for the tests of fused kernels:
what the emulator was given to compile, and random chains."""

import ctypes
import os

import numpy as np

import holon as flow
from holon import nn

FLOATS = ["float32", "float64", "float16", "bfloat16"]
INTS = ["int32", "int64", "int8", "uint8"]


def emulator():
    """The emulated module, None where another one is loaded."""
    path = os.environ.get("HOLON_CUDA_LIBRARY", "")
    if not path.endswith("emulated.so"):
        return None
    library = ctypes.CDLL(path)
    library.emulated_chain_source.restype = ctypes.c_char_p
    library.emulated_chain_source.argtypes = [ctypes.c_int64]
    library.emulated_chain_launches.restype = ctypes.c_int64
    return library


def sources():
    """All that was compiled in this process."""
    library, found = emulator(), []
    while library and (text := library.emulated_chain_source(len(found))):
        found.append(text.decode())
    return found


def launches():
    library = emulator()
    return library.emulated_chain_launches() if library else 0


class Chain(nn.Graph):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def build(self, *x):
        return self.fn(*x)


def data(rng, shape, dtype):
    if dtype == "bool":
        return flow.tensor(rng.integers(0, 2, shape)).to(flow.bool)
    if dtype in INTS:
        low, high = (0, 100) if dtype == "uint8" else (-100, 100)
        return flow.tensor(rng.integers(low, high, shape)).to(getattr(flow, dtype))
    return flow.tensor(rng.uniform(-3, 3, shape)).to(getattr(flow, dtype))


def raw(t):
    """The bytes of a tensor's elements in order, with one NaN for all."""
    t = t.cpu().contiguous()
    if t.dtype in (flow.float16, flow.bfloat16):
        t = t.to(flow.float32)  # exact, and one to one
    a = t.numpy()
    return np.where(np.isnan(a), np.nan, a).astype(a.dtype).tobytes() if a.dtype.kind == "f" else a.tobytes()


SHAPES = [
    (1,),
    (7,),
    (64,),
    (1031,),
    (3, 5),
    (4, 32),
    (17, 16),
    (2, 3, 8),
    (5, 1, 7),
    (0,),
    (3, 0, 4),
    (6, 8, 16),
    (40, 130),
]
UNARY = [
    "neg",
    "abs",
    "square",
    "relu",
    "exp",
    "sigmoid",
    "tanh",
    "gelu",
    "silu",
    "sqrt",
    "floor",
    "log1p",
    "erf",
    "sign",
    "softplus",
    "sin",
    "isnan",
    "reciprocal",
    "expm1",
    "round",
    "rsqrt",
]
BINARY = ["add", "sub", "mul", "div", "maximum", "minimum", "fmod", "pow", "atan2"]
COMPARE = ["eq", "lt", "ge", "ne", "gt"]


class RandomChain:
    """A chain of `length` ops over inputs that are whole, broadcast, transposed, strided and not aligned.
    The same seed gives the same chain."""

    def __init__(self, seed, length=8):
        self.rng = rng = np.random.default_rng(seed)
        self.seed, self.length = seed, length
        self.shape = SHAPES[seed % len(SHAPES)]
        self.inputs, self.views = [], []
        for _ in range(rng.integers(1, 5)):
            self.add_input(str(rng.choice(FLOATS + INTS + ["bool"], p=[0.3, 0.08, 0.14, 0.18] + [0.05] * 4 + [0.1])))

    def add_input(self, dtype):
        rng, shape = self.rng, self.shape
        n = len(shape)
        kind = rng.choice(["whole", "whole", "broadcast", "scalar", "transposed", "step", "offset"])
        if kind == "broadcast":
            self.inputs.append(data(rng, tuple(d if rng.integers(2) else 1 for d in shape), dtype))
            self.views.append(lambda x: x)
        elif kind == "scalar":
            self.inputs.append(data(rng, (1,) * int(rng.integers(0, n + 1)), dtype))
            self.views.append(lambda x: x)
        elif kind == "transposed" and n > 1:
            self.inputs.append(data(rng, shape[:-2] + (shape[-1], shape[-2]), dtype))
            self.views.append(lambda x: x.transpose(-1, -2))
        elif kind == "step":
            self.inputs.append(data(rng, shape[:-1] + (2 * shape[-1],), dtype))
            self.views.append(lambda x: x[..., ::2])
        elif kind == "offset":
            self.inputs.append(data(rng, shape[:-1] + (shape[-1] + 3,), dtype))
            self.views.append(lambda x, k=shape[-1]: x[..., 1 : 1 + k])
        else:
            self.inputs.append(data(rng, shape, dtype))
            self.views.append(lambda x: x)

    def __call__(self, *inputs):
        rng = np.random.default_rng(self.seed + 1000003)
        full = flow.zeros(*self.shape, dtype=flow.float32, device=inputs[0].device)
        values = [view(x) for view, x in zip(self.views, inputs)]
        for _ in range(self.length):
            values.append(self.step(rng, values))
        # What is not of the whole shape is made so; several results leave the chain.
        last = values[-1]
        out = last.to(flow.float32) + full if last.shape != full.shape else last
        middle = values[len(inputs) + self.length // 2]
        return (out, middle) if middle.shape == full.shape and self.seed % 3 == 0 else (out,)

    def step(self, rng, values):
        x, y = values[-1] if rng.integers(3) else values[rng.integers(len(values))], values[rng.integers(len(values))]
        kind = rng.choice(
            ["unary", "binary", "number", "compare", "cast", "where", "fill", "clamp", "addcmul", "divide"]
        )
        if kind == "cast":
            return x.to(getattr(flow, str(rng.choice(FLOATS + ["int32", "float32", "bfloat16"]))))
        if kind == "compare":
            return getattr(flow, str(rng.choice(COMPARE)))(x, y)
        if kind == "where":
            return flow.where(x > y, x, y)
        if kind == "fill":
            a, m = flow.broadcast_tensors(x, y) if hasattr(flow, "broadcast_tensors") else (x, x)
            return a.masked_fill(m > 1, 1)
        if kind == "divide" and not x.dtype.is_floating_point and x.dtype != flow.bool:
            return x // int(rng.integers(1, 9)) if rng.integers(2) else flow.fmod(x, flow.where(x == 0, x + 1, x))
        if x.dtype == flow.bool:
            return flow.logical_not(x) if kind == "unary" else flow.logical_or(x, y)
        if kind == "clamp":
            return x.clamp(-2, 2) if x.dtype != flow.uint8 else x.clamp(1, 20)
        if kind == "number":
            number = int(rng.integers(1, 5))
            return [lambda: x + number, lambda: number - x, lambda: x * number, lambda: x**2][rng.integers(4)]()
        if not x.dtype.is_floating_point:
            return flow.add(x, y.to(x.dtype)) if kind != "unary" else flow.abs(x)
        if kind == "unary":
            return getattr(flow, str(rng.choice(UNARY)))(x)
        if kind == "addcmul" and y.dtype == x.dtype:
            return flow.addcmul(x, y, y, value=0.5)
        return getattr(flow, str(rng.choice(BINARY)))(x, y.to(x.dtype))
