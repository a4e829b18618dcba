"""Random numbers and arrays made from indices: a device gives the CPU's values to the last bit."""

import sys
from pathlib import Path

import numpy as np
import pytest

import holon as flow

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import ranks  # noqa: E402

FLOATS = ["float32", "float64", "float16", "bfloat16"]
INTS = ["int32", "int64", "int8", "uint8", "bool"]


def numbers(t):
    t = t.cpu()
    return t.to(flow.float64).numpy() if t.dtype in (flow.float16, flow.bfloat16) else t.numpy()


def same(got, want):
    assert got.is_cuda and got.dtype == want.dtype and got.shape == want.shape
    np.testing.assert_array_equal(numbers(got), numbers(want))


def check(native, fn, staged=()):
    """fn(device) after one seed on both."""
    flow.manual_seed(11)
    want = fn("cpu")
    flow.manual_seed(11)
    if set(staged) - set(flow._C.device_kernels()):
        got = fn("cuda")
    else:
        with native():
            got = fn("cuda")
    same(got, want)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(), (1,), (63,), (5, 13), (3, 2, 129), (0, 4), (5000,)])
def test_floats(native, shape, dtype):
    d = getattr(flow, dtype)
    check(native, lambda at: flow.empty(shape, dtype=d, device=at).uniform_(-2, 5))
    check(native, lambda at: flow.empty(shape, dtype=d, device=at).normal_(1, 3))
    check(native, lambda at: flow.nn.functional.dropout(flow.ones(shape, dtype=d, device=at), 0.3, training=True))
    if hasattr(flow.nn.init, "trunc_normal_"):
        for low, high in [(-1, 2), (2, 3), (-9, -4)]:
            check(
                native,
                lambda at: flow.nn.init.trunc_normal_(flow.empty(shape, dtype=d, device=at), 0.1, 1.0, low, high),
            )


@pytest.mark.parametrize("dtype", INTS + ["float32"])
def test_integers(native, dtype):
    d = getattr(flow, dtype)
    high = 2 if dtype == "bool" else 100
    for shape in [(), (77,), (6, 35)]:
        check(native, lambda at: flow.randint(0, high, shape, device=at).to(d))
        check(native, lambda at: flow.empty(shape, device=at, dtype=d).bernoulli_(0.3))
    check(native, lambda at: flow.randint(-(2**62), 2**62, (100,), device=at))


def test_bernoulli_of_probabilities(native):
    for dtype in FLOATS:
        p = flow.tensor(np.random.default_rng(1).uniform(0, 1, (9, 31))).to(getattr(flow, dtype))
        check(native, lambda at: flow.bernoulli(p.to(at)))
        check(native, lambda at: flow.bernoulli(p.to(at).transpose(0, 1)))


def test_strides(native):
    def into(at, view, fill):
        x = flow.zeros(12, 40, device=at)
        fill(view(x))
        return x

    for view in [lambda x: x.transpose(0, 1), lambda x: x[:, 3:20], lambda x: x[1::2, ::3]]:
        check(native, lambda at: into(at, view, lambda v: v.normal_()))
        check(native, lambda at: into(at, view, lambda v: v.uniform_(0, 1)))


def test_dropout_gradient(native):
    def grad(at):
        x = flow.ones(33, 70, device=at, requires_grad=True)
        flow.nn.functional.dropout(x, 0.25, training=True).sum().backward()
        return x.grad

    flow.manual_seed(11)
    want = grad("cpu")
    flow.manual_seed(11)
    same(grad("cuda"), want)


@pytest.mark.parametrize("n", [0, 1, 2, 33, 1000])
def test_randperm(native, n):
    check(native, lambda at: flow.randperm(n, device=at), staged=("sort",))


@pytest.mark.parametrize("shape", [(7,), (3, 40), (2, 1000)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_multinomial(native, shape, dtype):
    w = flow.tensor(np.random.default_rng(2).uniform(0, 1, shape)).to(getattr(flow, dtype))
    w = flow.where(w < 0.2, flow.zeros_like(w), w)
    check(native, lambda at: flow.multinomial(w.to(at), 50, replacement=True))
    check(native, lambda at: flow.multinomial(w.to(at), 3), staged=("topk",))


@pytest.mark.parametrize(
    "weights,says", [([0.0, 0.0], "weights above 0"), ([1.0, -1.0], "weight -1"), ([1.0, float("inf")], "not finite")]
)
def test_weights_that_are_none(weights, says):
    for at in ["cpu", "cuda"]:
        with pytest.raises(ValueError, match=says):
            flow.multinomial(flow.tensor(weights).to(at), 1, replacement=True).cpu()
    with pytest.raises(ValueError, match="1 weights above 0; 2 are needed"):
        flow.multinomial(flow.tensor([1.0, 0.0]).cuda(), 2).cpu()


def test_numbers_that_are_refused():
    with pytest.raises(ValueError, match="probability"):
        flow.empty(3, device="cuda").bernoulli_(1.5)
    with pytest.raises(ValueError, match="must be above|range"):
        flow.randint(3, 3, (2,), device="cuda")


@pytest.mark.parametrize("dtype", FLOATS + ["int32", "int64", "int8", "uint8"])
def test_ranges(native, dtype):
    d = getattr(flow, dtype)
    check(native, lambda at: flow.arange(0, 100, 3, device=at).to(d))
    check(native, lambda at: flow.arange(0, 77, dtype=d, device=at))
    if dtype in FLOATS:
        check(native, lambda at: flow.arange(0.3, 9.1, 0.1, dtype=d, device=at))
        for n in [0, 1, 2, 7, 300]:
            check(native, lambda at: flow.linspace(-1.7, 2.9, n, dtype=d, device=at))


def test_identities(native):
    for n, m in [(3, 3), (2, 5), (5, 2), (0, 3), (33, 40)]:
        for d in [flow.float32, flow.bool, flow.bfloat16, flow.int64]:
            check(native, lambda at: flow.eye(n, m, dtype=d, device=at))


@pytest.mark.parametrize("dtype", FLOATS + INTS)
def test_triangles_pads_and_flips(native, dtype):
    x = flow.tensor(np.random.default_rng(3).integers(1, 100, (2, 5, 9))).to(getattr(flow, dtype))
    for diagonal in [0, 1, -2, 7, -9]:
        check(native, lambda at: flow.tril(x.to(at), diagonal))
        check(native, lambda at: flow.triu(x.to(at).transpose(1, 2), diagonal))
    check(native, lambda at: flow.flip(x.to(at), [0, 2]))
    if dtype != "bool":
        check(native, lambda at: flow.nn.functional.pad(x.to(at), (1, 2, 0, 3), value=4))
        check(native, lambda at: flow.nn.functional.pad(x.to(at), (-1, 2)))


def test_one_hot(native):
    i = flow.tensor(np.random.default_rng(4).integers(0, 7, (5, 6)))
    check(native, lambda at: flow.nn.functional.one_hot(i.to(at), 7))
    check(native, lambda at: flow.nn.functional.one_hot(i.to(flow.int32).to(at).transpose(0, 1), 9))
    with pytest.raises(IndexError, match="7"):
        flow.nn.functional.one_hot(flow.tensor([1, 7]).cuda(), 7).cpu()


@pytest.mark.parametrize("n", [2, 3])
def test_parts(n):
    done = ranks.launch(Path(__file__).parent / "programs/random_parts.py", n, timeout=120, EMULATED_DEVICES=4)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("the same") == n
