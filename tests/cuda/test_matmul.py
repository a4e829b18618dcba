"""Matrix products on a cuda device against the CPU's."""

import ctypes
import os

import numpy as np
import pytest

import holon as flow

FLOATS = [flow.float32, flow.float64, flow.float16, flow.bfloat16]
# Of the result's size: sums of a few hundred products in another order, then one rounding to the dtype.
TOLERANCE = {flow.float32: 2e-6, flow.float64: 1e-14, flow.float16: 2e-3, flow.bfloat16: 1.6e-2}


def values(shape, dtype=flow.float32, seed=0):
    rng = np.random.default_rng([seed, *shape])
    if dtype in FLOATS:
        return flow.tensor(rng.standard_normal(shape).astype(np.float32)).to(dtype)
    if dtype == flow.bool:
        return flow.tensor(rng.random(shape) < 0.2)
    return flow.tensor(rng.integers(-9, 10, shape)).to(dtype)


def as_numpy(x):
    x = x.detach().cpu()
    return x.to(flow.float64 if x.dtype in FLOATS else flow.int64).numpy()


def assert_same(got, wanted, factor=1.0):
    assert got.is_cuda and got.dtype == wanted.dtype and tuple(got.shape) == tuple(wanted.shape)
    a, b = as_numpy(got), as_numpy(wanted)
    if wanted.dtype not in FLOATS:
        return np.testing.assert_array_equal(a, b)
    scale = max(1.0, float(np.abs(b).max(initial=0)))
    np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE[wanted.dtype] * scale * factor)


def on_both(f, *inputs, factor=1.0):
    wanted = f(*inputs)
    assert_same(f(*(x.cuda() for x in inputs)), wanted, factor)


ALL = [*FLOATS, flow.int32, flow.int64, flow.int8, flow.uint8]


@pytest.mark.parametrize("dtype", [*ALL, flow.bool], ids=str)
@pytest.mark.parametrize("m, k, n", [(1, 1, 1), (3, 5, 7), (33, 70, 65), (1, 64, 40), (40, 64, 1), (17, 1, 9)])
def test_sizes(native, dtype, m, k, n):
    a, b = values((m, k), dtype), values((k, n), dtype, 1)
    with native():
        y = a.cuda() @ b.cuda()
    assert_same(y, a @ b)


@pytest.mark.parametrize("dtype", [flow.float32, flow.float16, flow.int32], ids=str)
@pytest.mark.parametrize("of_a", ["plain", "transposed", "sliced", "every second", "expanded"])
@pytest.mark.parametrize("of_b", ["plain", "transposed", "sliced", "every second", "expanded"])
def test_strides(native, dtype, of_a, of_b):
    def laid_out(x, how):
        r, c = x.shape
        if how == "transposed":
            return x.transpose(0, 1).contiguous().transpose(0, 1)
        if how == "sliced":
            y = flow.zeros(r + 3, c + 5, dtype=dtype, device=x.device)
            y[1 : r + 1, 2 : c + 2] = x
            return y[1 : r + 1, 2 : c + 2]
        if how == "every second":
            y = flow.zeros(2 * r, 2 * c, dtype=dtype, device=x.device)
            y[::2, ::2] = x
            return y[::2, ::2]
        return x[:1].expand(r, c) if how == "expanded" else x

    a, b = values((19, 24), dtype), values((24, 13), dtype, 1)
    wanted = laid_out(a, of_a) @ laid_out(b, of_b)
    a, b = laid_out(a.cuda(), of_a), laid_out(b.cuda(), of_b)
    with native():
        y = a @ b
    assert_same(y, wanted)


@pytest.mark.parametrize("dtype", [flow.float32, flow.bfloat16, flow.int64, flow.bool], ids=str)
@pytest.mark.parametrize(
    "shape_a, shape_b",
    [
        ((4, 5, 6), (4, 6, 3)),
        ((4, 5, 6), (6, 3)),
        ((5, 6), (4, 6, 3)),
        ((2, 3, 5, 6), (2, 3, 6, 4)),
        ((2, 1, 5, 6), (1, 3, 6, 4)),
        ((2, 3, 5, 6), (6, 4)),
        ((3, 1, 6), (6, 4)),
        ((1, 3, 6), (5, 6, 2)),
        ((20, 1, 3, 4), (1, 19, 4, 2)),
        ((2, 3, 1, 6), (3, 6, 4)),
        ((0, 5, 6), (6, 3)),
        ((4, 0, 6), (4, 6, 3)),
        ((4, 5, 0), (4, 0, 3)),
        ((3, 4, 0), (0, 2)),
    ],
)
def test_leading_axes(native, dtype, shape_a, shape_b):
    a, b = values(shape_a, dtype), values(shape_b, dtype, 1)
    with native():
        y = flow.matmul(a.cuda(), b.cuda())
    assert_same(y, flow.matmul(a, b))


def test_vectors(native):
    with native():
        on_both(flow.matmul, values((7,)), values((7,), seed=1))
        on_both(flow.matmul, values((7,)), values((7, 3)))
        on_both(flow.matmul, values((2, 3, 7)), values((7,)))


@pytest.mark.parametrize("heads, size", [(3, 5), (20, 4)])
def test_heads_side_by_side(native, heads, size):
    """q and k as views of [batch, tokens, heads, size], as attention has them: no axis joins another;
    many are packed."""
    shape = (18 if heads > 16 else 2, 6, heads, size)
    q, k = values(shape), values(shape, seed=1)

    def scores(q, k):
        return flow.matmul(q.permute(0, 2, 1, 3), k.permute(0, 2, 3, 1))

    with native():
        y = scores(q.cuda(), k.cuda())
    assert_same(y, scores(q, k))


def test_expanded_rows(native):
    a, b = values((1, 8)), values((8, 3))
    with native():
        y = flow.matmul(a.cuda().expand(5, 1, 8), b.cuda())
        z = flow.matmul(a.cuda().unsqueeze(0), b.cuda().expand(5, 8, 3))
    wanted = flow.matmul(a.expand(5, 1, 8), b)
    assert_same(y, wanted)
    assert_same(z, wanted)


def test_many_small(native):
    a, b = values((70001, 2, 1)), values((70001, 1, 2), seed=1)
    with native():
        y = flow.bmm(a.cuda(), b.cuda())
    assert_same(y, flow.bmm(a, b))


@pytest.mark.parametrize("dtype", [flow.float32, flow.float16], ids=str)
def test_add_to_products(native, dtype):
    c, a, b = values((5, 4), dtype), values((5, 6), dtype, 1), values((6, 4), dtype, 2)
    with native():
        on_both(lambda c, a, b: flow.addmm(c, a, b, beta=0.5, alpha=2), c, a, b, factor=3)
        on_both(
            lambda c, a, b: flow.baddbmm(c, a, b, beta=0.5, alpha=2),
            values((3, 5, 4), dtype),
            values((3, 5, 6), dtype, 1),
            values((3, 6, 4), dtype, 2),
            factor=3,
        )
        on_both(lambda a, b: flow.matmul(a, b, transpose_b=True, alpha=0.5), a, values((4, 6), dtype, 3))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(6,), (5, 6), (2, 3, 6), (0, 6)])
@pytest.mark.parametrize("bias", [False, True])
def test_linear(native, dtype, shape, bias):
    x, w, b = values(shape, dtype), values((9, 6), dtype, 1), values((9,), dtype, 2)
    with native():
        y = flow.nn.functional.linear(x.cuda(), w.cuda(), b.cuda() if bias else None)
    assert_same(y, flow.nn.functional.linear(x, w, b if bias else None))


def test_linear_of_views(native):
    """A bias of steps, x permuted so that its axes do not join."""
    x, w, b = values((4, 3, 6)), values((6, 9), seed=1), values((18,), seed=2)

    def f(x, w, b):
        return flow.nn.functional.linear(x.permute(1, 0, 2), w.transpose(0, 1), b[::2])

    with native():
        y = f(x.cuda(), w.cuda(), b.cuda())
    assert_same(y, f(x, w, b))


def gradients(f, inputs, device):
    xs = [x.to(device).requires_grad_() for x in inputs]
    y = f(*xs)
    weights = values(tuple(y.shape), y.dtype, 9).to(device)
    y.backward(weights)
    return [x.grad for x in xs]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ["matmul", "broadcast", "linear", "linear 1-d", "linear of nothing"])
def test_gradients(native, dtype, name):
    f, inputs = {
        "matmul": (flow.matmul, [values((2, 5, 6), dtype), values((2, 6, 4), dtype, 1)]),
        "broadcast": (flow.matmul, [values((2, 5, 6), dtype), values((6, 4), dtype, 1)]),
        "linear": (
            flow.nn.functional.linear,
            [values((2, 5, 6), dtype), values((4, 6), dtype, 1), values((4,), dtype, 2)],
        ),
        "linear 1-d": (
            flow.nn.functional.linear,
            [values((6,), dtype), values((4, 6), dtype, 1), values((4,), dtype, 2)],
        ),
        "linear of nothing": (
            flow.nn.functional.linear,
            [values((2, 5, 0), dtype), values((4, 0), dtype, 1), values((4,), dtype, 2)],
        ),
    }[name]
    with native():
        for got, wanted in zip(gradients(f, inputs, "cuda"), gradients(f, inputs, "cpu")):
            assert_same(got, wanted, 4)


def test_accumulated_gradients():
    """The second backward adds to the first one's results within the product."""

    def twice(device):
        x, w = values((5, 6)).to(device), values((4, 6), seed=1).to(device).requires_grad_()
        for _ in range(2):
            flow.nn.functional.linear(x, w).sum().backward()
        return w.grad

    assert_same(twice("cuda"), twice("cpu"))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(5, 6), (2, 70, 6), (6,), (0, 6), (40, 0)])
@pytest.mark.parametrize("turned", [False, True])
def test_gradients_of_weight_and_bias_in_one_product(native, dtype, shape, turned):
    """linear_gradients, as linear's backward calls it: twice, so that the second one adds; weights as they are and
    transposed, as GPT-2 has them."""
    n = 136
    x, b = values(shape, dtype), values((n,), dtype, 2)
    w = values((shape[-1], n) if turned else (n, shape[-1]), dtype, 1)

    def run(device):
        leaves = [t.to(device).requires_grad_() for t in (w, b)]
        for k in range(2):
            y = flow.nn.functional.linear(x.to(device), leaves[0].transpose(0, 1) if turned else leaves[0], leaves[1])
            y.backward(values(tuple(y.shape), dtype, 5 + k).to(device))
        return [t.grad for t in leaves]

    with native():
        for got, wanted in zip(run("cuda"), run("cpu")):
            assert_same(got, wanted, 4)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_what_reads_the_gradient_for_a_bias(dtype):
    """The product that makes the weight's gradient; where the library has none that does (the emulator's in float64)
    and where the weight needs none, a sum of its own."""
    if not os.environ.get("HOLON_CUDA_LIBRARY", "").endswith("emulated.so"):
        pytest.skip("the emulator counts it")
    library = ctypes.CDLL(os.environ["HOLON_CUDA_LIBRARY"])
    for function in (library.emulated_summed_products, library.emulated_launch_count):
        function.restype = ctypes.c_int64
    x, w, b = (values(s, dtype).cuda() for s in ((64, 16), (128, 16), (128,)))
    dy = values((64, 128), dtype, 3).cuda()

    def run(*leaves):
        for t in (x, w, b):
            t.requires_grad_(any(t is leaf for leaf in leaves))
        y = flow.nn.functional.linear(x, w, b)
        flow.cuda.synchronize()
        library.emulated_summed_products()
        before = library.emulated_launch_count()
        flow.autograd.grad([y], leaves, [dy])
        flow.cuda.synchronize()
        return library.emulated_launch_count() - before, library.emulated_summed_products()

    has = dtype != flow.float64
    assert run(x, w, b) == (2, 1) if has else (3, 0)
    assert run(w, b) == (1, 1) if has else (2, 0)
    assert run(b) == (1, 0) and run(w) == (1, 0)


B, S0, S1 = flow.sbp.broadcast, flow.sbp.split(0), flow.sbp.split(1)


@pytest.mark.parametrize(
    "x, w, b, dw, db",
    [
        (S0, B, B, B, B),  # data parallel: sums over the ranks, as the leaves are
        (B, S0, S0, S0, S0),  # by outputs
        (S1, S1, B, S1, B),  # by inputs: the bias has nothing of x
    ],
    ids=["rows", "outputs", "inputs"],
)
def test_gradients_of_a_global_linear(x, w, b, dw, db):
    """Layouts are those of two ops, as on the CPU, and no input is redistributed."""

    def run(placement):
        leaves = [
            flow.tensor(values(shape, seed=i).numpy(), placement=placement, sbp=B).to_global(placement, sbp)
            for i, (shape, sbp) in enumerate([((6, 8), x), ((4, 8), w), ((4,), b)])
        ]
        leaves = [t.detach().requires_grad_() for t in leaves]
        y = flow.nn.functional.linear(*leaves)
        dy = flow.tensor(values((6, 4), seed=7).numpy(), placement=placement, sbp=B)
        dy = dy.to_global(placement, B if y.sbp[0] == flow.sbp.partial_sum else y.sbp[0])
        with flow.boxing_policy("raise"):
            return flow.autograd.grad([y], leaves[1:], [dy])

    def on(device):
        def of_rank(_):
            return [(g.sbp, g.to_local().cpu().numpy()) for g in run(flow.placement(device, [0, 1]))]

        return flow.run_ranks(2, of_rank)

    for of_cpu, of_cuda in zip(on("cpu"), on("cuda")):
        for (sbp, want), (same, got), expected in zip(of_cpu, of_cuda, (dw, db)):
            assert sbp == same == (expected,)
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)


class Layers(flow.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = flow.nn.Linear(8, 16), flow.nn.Linear(16, 4)

    def forward(self, x):
        return self.down(self.up(x).relu())


@pytest.mark.parametrize("lower", [False, True])
def test_linear_in_graphs_and_autocast(lower):
    """Micro-batches, whose gradients are added up by the products, against eager mode on the CPU."""
    rows = values((16, 8))

    def made(device):
        flow.manual_seed(1)
        model = Layers().to(device)
        return model, flow.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(model, x, device):
        with flow.autocast(device, dtype=flow.bfloat16, enabled=lower):
            return model(x).float().square().mean()

    model, optimizer = made("cpu")
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(model, rows, "cpu").backward()
        optimizer.step()

    on_device, update = made("cuda")

    class Train(flow.nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = on_device
            self.add_optimizer(update)
            self.config.set_gradient_accumulation_steps(2)

        def build(self, x):
            loss = loss_of(self.model, x, "cuda")
            loss.backward()
            return loss

    step = Train()
    for _ in range(3):
        step(rows.cuda())
    assert step.plan().count("linear_gradients") == 4 and "linear_weight_grad" not in step.plan()
    for want, got in zip(model.parameters(), on_device.parameters()):
        np.testing.assert_allclose(as_numpy(got), as_numpy(want), rtol=0, atol=4e-3 if lower else 1e-6)


def test_second_gradients_of_linear():
    """Through the op that makes both gradients, which the CPU has not in eager mode."""

    def run(device, of):
        x, w, b = (values(s, seed=i).to(device).requires_grad_() for i, s in enumerate(((3, 5), (4, 5), (4,))))
        y = flow.nn.functional.linear(x, w, b).tanh()
        dw, db = flow.autograd.grad(y.square().sum(), (w, b), create_graph=True)
        loss = {"both": dw.square().sum() + db.square().sum(), "w": dw.square().sum(), "b": db.square().sum()}[of]
        return flow.autograd.grad(loss, (x, w, b))

    for of in ("both", "w", "b"):
        for got, wanted in zip(run("cuda", of), run("cpu", of)):
            assert_same(got, wanted, 4)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("then", ["relu", "gelu", "gelu_tanh", "add", "mul", "relu_backward"])
def test_linear_then(native, dtype, bias, then):
    x, w, b, other = (
        values((2, 5, 6), dtype),
        values((9, 6), dtype, 1),
        values((9,), dtype, 2),
        values((2, 5, 9), dtype, 3),
    )
    alone = then in ("relu", "gelu", "gelu_tanh")

    def f(x, w, b, other):
        return flow._C.call("linear_then", x, w, b if bias else None, None if alone else other, then=then)

    with native():
        on_both(f, x, w, b, other, factor=2)
        turned = values((9, 5, 2), dtype, 3)
        on_both(lambda x, w, b, t: f(x, w, b, t.permute(2, 1, 0)), x, w, b, turned, factor=2)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("then", ["add", "mul", "relu_backward"])
def test_matmul_then(native, dtype, then):
    with native():
        on_both(
            lambda a, b, other: flow._C.call("matmul_then", a, b, other, then=then),
            values((3, 5, 6), dtype),
            values((6, 9), dtype, 1),
            values((3, 5, 9), dtype, 2),
            factor=2,
        )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_linear_gelu(native, dtype, approximate):
    x, w, b = values((2, 5, 6), dtype), values((9, 6), dtype, 1), values((9,), dtype, 2)
    wanted = flow._C.call("linear_gelu", x, w, b, approximate=approximate)
    with native():
        got = flow._C.call("linear_gelu", x.cuda(), w.cuda(), b.cuda(), approximate=approximate)
    for g, v in zip(got, wanted):
        assert_same(g, v, 2)


def test_a_graph_with_epilogues(native):
    """What nn.Graph fuses: a two-layer network with each activation, and its gradients."""

    class Network(flow.nn.Module):
        def __init__(self, act):
            super().__init__()
            self.first, self.act, self.second = flow.nn.Linear(6, 16), act, flow.nn.Linear(16, 3)

        def forward(self, x):
            return self.second(self.act(self.first(x)))

    def train(act, device):
        flow.manual_seed(0)
        model = Network(act).to(device)
        optimizer = flow.optim.SGD(model.parameters(), lr=0.1)

        class Train(flow.nn.Graph):
            def __init__(self):
                super().__init__()
                self.model = model
                self.add_optimizer(optimizer)

            def build(self, x):
                loss = self.model(x).square().mean()
                loss.backward()
                return loss

        step = Train()
        x = values((8, 6)).to(device)
        return [float(step(x).cpu().numpy()) for _ in range(4)]

    with native():
        for act in (flow.nn.ReLU(), flow.nn.GELU()):
            np.testing.assert_allclose(train(act, "cuda"), train(act, "cpu"), rtol=2e-5)


def test_tf32_is_a_setting():
    assert flow.backends.cuda.matmul.allow_tf32 is False
    flow.backends.cuda.matmul.allow_tf32 = True
    try:
        on_both(flow.matmul, values((9, 8)), values((8, 7)), factor=1000)
    finally:
        flow.backends.cuda.matmul.allow_tf32 = False


def test_errors():
    with pytest.raises(ValueError, match="inner sizes"):
        values((2, 3)).cuda() @ values((2, 3)).cuda()
