"""Chains of element-wise ops in nn.Graph on a device: one kernel for each, with the bits of the ops one by one."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from harness import ranks
from harness.chains import Chain, RandomChain, data, launches, raw, sources

import holon as flow

EMULATED = os.environ.get("HOLON_CUDA_LIBRARY", "").endswith("emulated.so")
RNG = np.random.default_rng(3)


def tuple_of(y):
    return y if isinstance(y, tuple) else (y,)


def check(fn, *inputs, fuses=True):
    """The graph on the device against fn there, bit by bit, and against the graph on the CPU.
    Returns what was compiled for it."""
    before, started = len(sources()), launches()
    moved = [x.cuda() for x in inputs]
    graph = Chain(fn)
    with np.errstate(all="ignore"):
        want = tuple_of(fn(*moved))
        for _ in range(2):
            for got, one in zip(tuple_of(graph(*moved)), want):
                assert got.dtype == one.dtype and got.shape == one.shape
                assert raw(got) == raw(one)
        for got, cpu in zip(want, tuple_of(Chain(fn)(*inputs))):
            assert got.dtype == cpu.dtype and got.shape == cpu.shape
    if EMULATED and fuses:
        assert launches() > started, "nothing was fused"
    return sources()[before:]


@pytest.mark.parametrize("seed", [*range(20), *(pytest.param(s, marks=pytest.mark.slow) for s in range(20, 80))])
def test_random_chains(seed):
    chain = RandomChain(seed)
    check(chain, *chain.inputs, fuses=False)


def test_random_chains_are_fused():
    if not EMULATED:
        pytest.skip("the emulator counts")
    before, chain = launches(), RandomChain(5)
    check(chain, *chain.inputs)
    assert launches() > before


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_floats_of_all_widths(dtype):
    x, y = data(RNG, (33, 64), dtype), data(RNG, (33, 64), dtype)
    made = check(lambda x, y: flow.gelu(x * y + x) * flow.sigmoid(y) - 0.5, x, y)
    width = {"float32": 4, "float64": 2}.get(dtype, 8)
    assert not EMULATED or f"load<{width}>" in made[0]


@pytest.mark.parametrize("dtype", ["int32", "int64", "int8", "uint8", "bool"])
def test_integers_wrap_around_and_bools(dtype):
    x, y = data(RNG, (5, 41), dtype), data(RNG, (5, 41), dtype)
    if dtype == "bool":
        check(lambda x, y: flow.logical_xor(x, y) | flow.logical_not(x & y), x, y)
    else:
        check(lambda x, y: (x * y + y > x) | (x * 77 * y < y), x, y)
        check(lambda x, y: (x * y + 3) * (y - x), x, y)


def test_products_and_sums_stay_apart():
    """x y + z is rounded twice, as by two ops."""
    x, y, z = (flow.tensor(RNG.standard_normal(4096)).to(flow.float32) for _ in range(3))
    check(lambda x, y, z: x * y + z, x, y, z)
    check(lambda x, y, z: (x * y - z) * 3.0 + x * x, x, y, z)


LAYOUTS = {
    "row": (lambda x, y: x + y[0], "i1"),
    "column": (lambda x, y: x + y[:, :1], "load<1>"),
    "one element": (lambda x, y: x * y[:1, :1], "= *a.x"),
    "transposed": (lambda x, y: x + y.transpose(0, 1).contiguous().transpose(0, 1), None),
    "all transposed": (lambda x, y: x.transpose(0, 1) * y.transpose(0, 1), None),
    "every second": (lambda x, y: x[:, ::2] + y[:, 1::2], None),
    "not aligned": (lambda x, y: x[:, 1:] * y[:, :-1], None),
    "rows cut": (lambda x, y: x[:, :32] + y[:, 16:48], None),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_layouts(name, dtype):
    fn, sign = LAYOUTS[name]
    x, y = data(RNG, (48, 48), dtype), data(RNG, (48, 48), dtype)
    made = check(lambda x, y: flow.relu(fn(x, y)) * 2 + 1, x, y)
    if sign and made:
        assert sign in made[0]


@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 31, 1023, 4097, 70001])
def test_lengths(n):
    for dtype in ["float32", "float16"]:
        check(lambda x, y: flow.silu(x) * y + 1, data(RNG, (n,), dtype), data(RNG, (n,), dtype), fuses=n > 0)


def test_casts_and_selections():
    x, m = data(RNG, (19, 24), "float32"), data(RNG, (19, 24), "bool")
    check(lambda x, m: flow.where(m, x.to(flow.bfloat16), (x * 3).to(flow.bfloat16)).to(flow.float32) + x, x, m)
    check(lambda x, m: (x * 50).to(flow.int8).masked_fill(m, 7) + 1, x, m)
    check(lambda x, m: flow.where(m[0], x, -x).masked_fill(m[:, :1], float("inf")) * 2, x, m)
    check(lambda x, m: (x.to(flow.float16) * 0.1).to(flow.bool) & m, x, m)


def test_numbers_that_are_not():
    x = flow.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-42, 3e38, 1.0], dtype=flow.float32)
    check(lambda x: flow.maximum(flow.exp(x) - x, x * 0.5), x)
    check(lambda x: flow.where(flow.isnan(x / x), x, x * 2).to(flow.bfloat16), x)


def test_several_results_and_an_input_written_over():
    def fn(x, y):
        h = flow.tanh(x) + y
        g = h * h
        return h, g - y, (g > 1)

    check(fn, data(RNG, (12, 20), "float32"), data(RNG, (20,), "float32"))
    check(lambda x: ((((x + 1) * 2).exp() + 1).log() - x) * x, data(RNG, (64, 16), "float32"))


def test_alike_chains_share_a_kernel():
    if not EMULATED:
        pytest.skip("the emulator counts")
    first = check(lambda x: flow.relu(x * 2 + 1) - 0.75, data(RNG, (8, 40), "float32"))
    again = check(lambda x: flow.relu(x * 3 + 7) - 0.25, data(RNG, (6, 4, 16), "float32"))
    assert len(first) == 1 and not again


def test_ranks_that_are_threads_compile_once():
    if not EMULATED:
        pytest.skip("the emulator counts")
    before = len(sources())
    x, errors = data(RNG, (1000,), "float32"), []

    def run():
        try:
            fn = lambda x: flow.selu(x * 2) - flow.cos(x)  # noqa: E731
            moved = x.cuda()
            assert raw(Chain(fn)(moved)) == raw(fn(moved))
        except Exception as e:
            errors.append(e)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    assert len(sources()) == before + 1


def test_division_by_zero_names_the_op():
    x, y = flow.tensor([6, 7, 8]).cuda(), flow.tensor([2, 0, 1]).cuda()
    with pytest.raises(ValueError, match="floor_divide.*divided by 0"):
        Chain(lambda x, y: (x // y) * 2 + x)(x, y)
        flow.cuda.synchronize()
    assert Chain(lambda x, y: (x // y) * 2 + x)(x, flow.tensor([2, 7, 1]).cuda()).tolist() == [12, 9, 24]
    with pytest.raises(ValueError, match="floor_divide.*by zero"):
        Chain(lambda x: (x + 1) // 0 + 2)(x)


PROGRAM = """
import holon as flow
from holon import nn
class G(nn.Graph):
    def build(self, x):
        return flow.gelu(x * 2) + 1, (flow.relu(x.transpose(0, 1)) - 1) * 3
x = flow.arange(24, dtype=flow.float32).reshape(4, 6).cuda()
g = G()
for i in range(3):
    a, b = g(x)
    assert (a - (flow.gelu(x * 2) + 1)).abs().max().item() == 0
    assert (b - (flow.relu(x.transpose(0, 1)) - 1) * 3).abs().max().item() == 0
"""


def run_program(**settings):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], env=ranks.environment(**settings), capture_output=True, text=True, timeout=120
    )


@pytest.mark.skipif(not EMULATED, reason="on a device the compiler is what it is")
@pytest.mark.parametrize(
    "settings,said",
    [
        ({"EMULATED_COMPILER": "0"}, "there is no compiler"),
        ({"EMULATED_COMPILER": "broken"}, "accepts nothing"),
        ({"HOLON_FUSED_KERNELS": "0"}, ""),
    ],
)
def test_without_a_compiler_the_ops_run_one_by_one(settings, said):
    done = run_program(HOLON_CUDA_LIBRARY=os.environ["HOLON_CUDA_LIBRARY"], **settings)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("as a kernel each") == bool(said) and said in done.stderr


@pytest.mark.skipif(not EMULATED, reason="orders of the emulator")
@pytest.mark.parametrize("settings", [{"EMULATED_LAZY": "1"}, {"EMULATED_REVERSED": "1"}])
def test_orders_of_work(settings):
    done = run_program(HOLON_CUDA_LIBRARY=os.environ["HOLON_CUDA_LIBRARY"], **settings)
    assert done.returncode == 0, done.stderr
