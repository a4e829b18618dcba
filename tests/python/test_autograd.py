"""Gradient modes, grad, and functions with a backward of their own."""

import itertools
import json

import numpy as np
import pytest
from harness import ranks

import holon
from holon.autograd import Function, grad


def records():
    return (holon.ones(1, requires_grad=True) * 2).requires_grad


def test_modes():
    assert holon.is_grad_enabled() and records()
    with holon.no_grad():
        assert not records()
        with holon.enable_grad():
            assert records()
        assert not records()
    with holon.inference_mode():
        assert not records()
    with holon.inference_mode(False):
        assert records()
    with holon.set_grad_enabled(False):
        assert not records()
    assert records()
    holon.set_grad_enabled(False)
    assert not records()
    holon.set_grad_enabled(True)


@pytest.mark.parametrize("decorate", [holon.no_grad(), holon.no_grad], ids=["brackets", "plain"])
def test_mode_as_decorator(decorate):
    @decorate
    def inner(depth):
        """Text."""
        assert not holon.is_grad_enabled()
        return inner(depth - 1) if depth else "end"

    assert inner(2) == "end" and inner.__name__ == "inner" and inner.__doc__ == "Text."
    assert holon.is_grad_enabled()
    with pytest.raises(ZeroDivisionError):
        with holon.no_grad():
            1 / 0  # noqa: B018
    assert holon.is_grad_enabled()
    with pytest.raises(TypeError, match="generator"):

        @holon.no_grad()
        def many():
            yield 1


def test_modes_belong_to_a_rank():
    def run(rank):
        holon.set_grad_enabled(rank == 0)
        holon.comm.barrier()
        return records()

    assert holon.run_ranks(2, run) == [True, False]
    assert records()


def test_grad_leaves_grad_alone():
    x = holon.tensor([1.0, 2.0], requires_grad=True)
    y = (x * x * x).sum()
    (dx,) = grad(y, x, create_graph=True)
    assert dx.tolist() == [3, 12] and x.grad is None
    assert grad(dx.sum(), x)[0].tolist() == [6, 12]
    with pytest.raises(RuntimeError):
        grad((x * 2).sum(), holon.ones(1, requires_grad=True))
    assert grad((x * 2).sum(), [x, holon.ones(1, requires_grad=True)], allow_unused=True)[1] is None


class Cube(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * x * x * factor

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return dy * x * x * 3 * ctx.factor, None


def test_function():
    x = holon.tensor([1.0, 2.0], requires_grad=True)
    y = Cube.apply(x, 2)
    assert y.tolist() == [2, 16]
    y.sum().backward()
    assert x.grad.tolist() == [6, 24]
    with holon.no_grad():
        assert not Cube.apply(x, 2).requires_grad


def test_function_of_several():
    class SumAndPlaces(Function):
        @staticmethod
        def forward(ctx, a, b):
            assert ctx.needs_input_grad == (True, False)
            places = a > b
            ctx.mark_non_differentiable(places)
            return a + b, places

        @staticmethod
        def backward(ctx, d_sum, d_places):
            assert d_places is None
            return d_sum * 5, None

    a, b = holon.ones(2, requires_grad=True), holon.zeros(2)
    total, places = SumAndPlaces.apply(a, b)
    assert total.requires_grad and not places.requires_grad
    total.sum().backward()
    assert a.grad.tolist() == [5, 5]


def test_wrong_number_of_gradients_is_named():
    class Wrong(Cube):
        @staticmethod
        def backward(ctx, dy):
            return dy

    x = holon.ones(1, requires_grad=True)
    with pytest.raises(RuntimeError, match="Wrong.backward returned 1 gradients for the 2 arguments"):
        Wrong.apply(x, 1).backward()


def test_function_on_global_tensors():
    def run(rank):
        p = holon.placement.all("cpu")
        x = holon.tensor(np.arange(5.0), placement=p, sbp=holon.sbp.split(0))
        x.requires_grad = True
        Cube.apply(x, 1).sum().backward()
        return x.grad.tolist()

    for found in holon.run_ranks(2, run):
        assert found == [0, 3, 12, 27, 48]


class Scaled(Function):
    """x @ w through NumPy: on one rank's parts, whatever they are."""

    sharding_rule = "m k, k n -> m n"

    @staticmethod
    def forward(ctx, x, w, factor):
        assert x.is_local and w.is_local
        ctx.save_for_backward(x, w)
        ctx.factor = factor
        return holon.from_numpy(x.numpy() @ w.numpy()) * factor

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        return holon.matmul(dy, w.t()) * ctx.factor, holon.matmul(x.t(), dy) * ctx.factor, None


def layouts(rank_dims):
    one = [holon.sbp.broadcast, holon.sbp.split(0), holon.sbp.split(1), holon.sbp.partial_sum]
    return [(s,) for s in one] if rank_dims == 1 else [(s, t) for s in one for t in one]


@pytest.mark.parametrize("ranks", [[0, 1], [0, 2], [0, 1, 2], [[0, 1], [2, 3]]], ids=["2", "2 of 3", "3", "2x2"])
def test_a_function_with_a_sharding_rule(ranks):
    xs, ws = np.arange(20.0).reshape(5, 4) % 7 - 3, np.arange(12.0).reshape(4, 3) % 5 - 2
    dys = np.arange(15.0).reshape(5, 3) % 4 - 1

    def run(rank):
        place = holon.placement("cpu", ranks)
        dims = np.ndim(ranks)
        whole = [holon.sbp.broadcast] * dims
        everywhere = holon.placement("cpu", list(range(holon.env.get_world_size())))

        def make(values, sbp):
            t = holon.tensor(values, placement=place, sbp=whole)
            return t.to_global(place, list(sbp))

        for sx in layouts(dims):
            for sw in layouts(dims)[:: 3 if dims == 2 else 1]:
                x, w = make(xs, sx).requires_grad_(), make(ws, sw).requires_grad_()
                y = Scaled.apply(x, w, 2.0)
                assert y.is_global and y.shape == (5, 3) and y.grad_fn.name == "Scaled"
                y.backward(make(dys, whole))
                for got, want in [(y, 2 * xs @ ws), (x.grad, 2 * dys @ ws.T), (w.grad, 2 * xs.T @ dys)]:
                    got = got.detach().to_global(everywhere, holon.sbp.broadcast).to_local().numpy()
                    assert np.allclose(got, want), (sx, sw)
                assert x.grad.sbp == x.sbp and w.grad.sbp == w.sbp
        return str(Scaled.apply(make(xs, [holon.sbp.split(0)] * dims), make(ws, whole), 1.0).sbp)

    world = 3 if ranks == [0, 2] else np.size(ranks)
    assert all("split(dim=0)" in s and "split(dim=1)" not in s for s in holon.run_ranks(world, run))


def test_wrong_sharding_rules_say_what_is_wrong():
    def apply(rule, function=lambda x: x, infer_=None):
        class Mine(Function):
            sharding_rule = rule
            infer = infer_ and staticmethod(infer_)

            @staticmethod
            def forward(ctx, x):
                return function(x)

        x = holon.ones(4, 2, placement=holon.placement("cpu", [0]), sbp=holon.sbp.broadcast)
        return Mine.apply(x)

    for rule, text in [
        ("a b", "has no arrow"),
        ("a b, c -> a", "has 2 inputs, the call 1"),
        ("a -> a", r"input 0 has shape \[4, 2\].*names 1 axes"),
        ("a b -> a c", "c of the sharding rule .* appears in no input"),
        ("a a -> a", "a of the sharding rule .* has size 4"),
    ]:
        with pytest.raises(ValueError, match=f"Mine: .*{text}"):
            apply(rule)
    with pytest.raises(RuntimeError, match=r"Mine: output 0 has shape \[8\].*this part's is \[4, 2\]"):
        apply("a b -> a b", lambda x: x.reshape(8))
    with pytest.raises(TypeError, match="Mine: output 0 is float64; .*float32"):
        apply("a b -> a b", lambda x: x.double())
    with pytest.raises(RuntimeError, match="Mine: forward returned 2 tensors"):
        apply("a b -> a b", lambda x: [x, x])
    y = apply("a b -> a B", lambda x: holon.cat([x, x], 1), lambda shape: (shape[0], 2 * shape[1]))
    assert y.is_global and y.shape == (4, 4)


def test_a_derivative_that_is_not_there_raises():
    x = holon.rand(4, 4, requires_grad=True)
    labels, lengths = holon.ones(1, 2, dtype=holon.int64), holon.tensor([4])
    loss = holon.nn.functional.ctc_loss(holon.log_softmax(x, 1).unsqueeze(1), labels, lengths, [2])
    (dx,) = grad(loss, x, create_graph=True)
    with pytest.raises(NotImplementedError, match="ctc_loss_backward: it has no gradient here"):
        dx.sum().backward()
    (dx,) = grad((holon.softmax(x, 1) ** 2).sum(), x, create_graph=True)
    (dxx,) = grad(dx[0, 0], x)
    h = 1e-3
    with holon.no_grad():
        y = x.double()
        y[0, 0] += h

    def slope(v):
        v = v.detach().requires_grad_()
        return grad((holon.softmax(v, 1) ** 2).sum(), v)[0][0, 0].item()

    assert abs((slope(y) - slope(x.double())) / h - dxx[0, 0].item()) < 1e-3


F = holon.nn.functional
ZERO = {
    "relu": lambda x: F.relu(x),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
    "relu6": lambda x: F.relu6(x),
    "hardtanh": lambda x: F.hardtanh(x),
    "threshold": lambda x: F.threshold(x, 0.1, 2.0),
    "abs": lambda x: x.abs(),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 2),
    "nll_loss": lambda x: F.nll_loss(x[:, :, 0, 0], holon.tensor([1, 0])),
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "sum": lambda x: x * 3,
    "max": lambda x: x.max(),
    "l1_loss": lambda x: F.l1_loss(x, holon.zeros(2, 2, 4, 4)),
}


@pytest.mark.parametrize("name", ZERO)
def test_a_second_derivative_that_is_zero(name):
    x = holon.randn(2, 2, 4, 4, requires_grad=True)
    (g,) = grad(ZERO[name](x).sum(), x, create_graph=True)
    (again,) = grad((g * 3).sum(), x, retain_graph=True)
    assert again.shape == x.shape and again.numpy().any() == 0
    v = holon.randn(2, 2, 4, 4)
    (g * v).sum().backward()
    assert x.grad is None or not x.grad.numpy().any()


def test_hessian_times_vector_of_a_net_with_relu():
    holon.manual_seed(0)
    net = holon.nn.Sequential(holon.nn.Linear(3, 4), holon.nn.ReLU(), holon.nn.Linear(4, 1)).to(holon.float64)
    x, params = holon.randn(5, 3, dtype=holon.float64), list(net.parameters())
    vectors = [holon.randn(*p.shape, dtype=holon.float64) for p in params]

    def gradients(create_graph=False):
        return grad((net(x) ** 2).sum(), params, create_graph=create_graph)

    first = gradients(create_graph=True)
    product = grad(sum((g * v).sum() for g, v in zip(first, vectors)), params)
    h = 1e-6
    with holon.no_grad():
        for p, v in zip(params, vectors):
            p.add_(v, alpha=h)
    moved = gradients()
    for a, b, c in zip(first, moved, product):
        np.testing.assert_allclose((b - a).detach().numpy() / h, c.numpy(), rtol=1e-3, atol=1e-4)


def test_an_input_that_outputs_do_not_depend_on_is_told():
    x, y = holon.ones(2, requires_grad=True), holon.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="was not used to compute"):
        grad(x.relu().sum(), [x, y], create_graph=True)
    assert grad(x.relu().sum(), [x, y], allow_unused=True)[1] is None


def test_twice_through_ops_that_keep_nothing():
    x, y = holon.ones(2, requires_grad=True), holon.ones(2, requires_grad=True)
    z = (x + y).sum()
    z.backward()
    z.backward()
    assert x.grad.tolist() == [2, 2]
    z = (x * y).sum()
    z.backward()
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        z.backward()


HALF, SINGLE, DOUBLE = holon.bfloat16, holon.float32, holon.float64
MIXED = {
    "add": (lambda a, b: a + b, (3, 4), (4,)),
    "mul": (lambda a, b: a * b, (3, 4), (4,)),
    "pow": (lambda a, b: a**b, (3, 4), (3, 4)),
    "where": (lambda a, b: holon.where(holon.tensor([True, False]), a, b), (2,), (2,)),
    "cat": (lambda a, b: holon.cat([a, b]), (2,), (2,)),
    "mse_loss": (F.mse_loss, (3, 4), (3, 4)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), (3, 4), (4,), (4,)),
    "rms_norm": (lambda x, w: F.rms_norm(x, (4,), w), (3, 4), (4,)),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (3, 4), (4,), (4,)),
    "batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), (3, 4), (4,), (4,)),
    "sum": (lambda x: x.sum(dtype=holon.float64), (3, 4)),
    "softmax": (lambda x: F.softmax(x, dim=-1, dtype=holon.float64), (3, 4)),
    "to": (lambda x: x.to(holon.float64) * 2, (3, 4)),
}


@pytest.mark.parametrize("name", MIXED)
def test_gradients_have_the_dtype_of_what_they_are_of(name):
    function, *shapes = MIXED[name]
    found = 0
    for dtypes in itertools.product((HALF, SINGLE, DOUBLE), repeat=len(shapes)):
        leaves = [(holon.rand(*s) + 0.5).to(d).detach().requires_grad_() for s, d in zip(shapes, dtypes)]
        for inputs in (leaves, [x * 1 for x in leaves]):  # also of what is no leaf
            try:
                y = function(*inputs)
            except TypeError:
                continue  # an op that takes one dtype
            given = holon.ones(y.shape, dtype=DOUBLE)  # and whatever dtype comes in
            gradients = holon.autograd.grad(y, inputs, given, retain_graph=True)
            assert [g.dtype for g in gradients] == list(dtypes), dtypes
            y.sum().backward()
            assert [x.grad.dtype for x in leaves] == list(dtypes)
            found += 1
    assert found >= 6


def test_gradients_of_hooks_and_functions_are_brought_to_the_dtype():
    class Widens(holon.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, dy):
            return dy.double() * 2

    x = holon.ones(3, requires_grad=True)
    h = x * 3
    h.register_hook(lambda g: g.double() * 5)
    for g in holon.autograd.grad(Widens.apply(h).sum(), [h, x]):
        assert g.dtype == holon.float32
    x.register_hook(lambda g: g.double())
    Widens.apply(x).sum().backward()
    assert x.grad.dtype == holon.float32 and x.grad.tolist() == [2, 2, 2]


def test_a_gradient_with_other_data_is_moved_again():
    """What an op of a function's backward has redistributed of its gradient is kept for the next, but no longer."""

    class Sets(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, dy):
            table = holon.ones(4, 2, placement=dy.placement, sbp=holon.sbp.split(0))
            first = dy * table
            dy.data = dy * 3
            return first + dy * table

    def run(rank):
        place = holon.placement("cpu", [0, 1])
        x = holon.ones(4, 2, placement=place, sbp=holon.sbp.broadcast, requires_grad=True)
        Sets.apply(x).backward(holon.ones(4, 2, placement=place, sbp=holon.sbp.split(1)))
        return x.grad.full_value().tolist()

    assert holon.run_ranks(2, run) == [[[4.0, 4.0]] * 4] * 2


def gradient_by_parts(parts, weights, rest=()):
    """x's gradient where the sum of each part of x * 2, times a weight, is differentiated."""
    x = holon.randn(4, 6, 3, requires_grad=True)
    y = x * 2
    total = sum((take(y) * w).sum() for take, w in zip(parts, weights))
    for more in rest:
        total = total + more(y)
    total.backward()
    wanted = np.zeros((4, 6, 3), np.float32)
    for take, w in zip(parts, weights):
        take(wanted)[...] += 2 * w
    return x.grad.numpy(), wanted


def test_gradients_of_stretches_are_joined():
    whole = [lambda y: y[:, 2:3], lambda y: y[:, :2], lambda y: y[:, 3:]]
    got, wanted = gradient_by_parts(whole, (1, 2, 3))
    np.testing.assert_array_equal(got, wanted)
    got, wanted = gradient_by_parts(whole, (1, 2, 3), [lambda y: y.sum()])
    np.testing.assert_array_equal(got, wanted + 2)
    columns = [lambda y, k=k: y[:, k] for k in (3, 0, 1, 5, 4, 2)]
    for parts in (columns, columns[1:], [columns[1], lambda y: y[:, 1:]], [*columns, columns[0]]):
        got, wanted = gradient_by_parts(parts, (1, 2, 3, 4, 5, 6, 7))
        np.testing.assert_array_equal(got, wanted)
    for parts in (
        whole[:2],  # a gap at the end
        [*whole, whole[0]],  # one twice
        [whole[0], lambda y: y[:2], lambda y: y[2:]],  # of two axes
        [lambda y: y[:, ::2], lambda y: y[:, 1::2]],
        [lambda y: y[:, 3:3], lambda y: y[:, :3], lambda y: y[:, 3:]],
    ):
        got, wanted = gradient_by_parts(parts, (1, 2, 3, 4))
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("parts", ["chunk(3, 1)", "unbind(1)", "permute(1, 0).unbind(0)"])
def test_a_chunk_gives_its_gradient_back_in_one_piece(tmp_path, parts):
    program = tmp_path / "program.py"
    program.write_text(
        "import holon as flow\n"
        f"x = flow.randn(4, {6 if 'chunk' in parts else 3}, requires_grad=True)\n"
        f"a, b, c = (x * 2).{parts}\n"
        "(a * b - c).sum().backward()\n"
    )
    done = ranks.run(program, cwd=tmp_path, HOLON_TRACE=tmp_path / "trace.json")
    assert done.returncode == 0, done.stderr
    names = [e.get("name") for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]]
    assert names.count("cat") == 1 and "slice_backward" not in names


def test_second_derivatives_through_chunks():
    x = holon.randn(4, 6, requires_grad=True)
    a, b = (x * x).chunk(2, 1)
    (g,) = holon.autograd.grad((a * b).sum(), [x], create_graph=True)
    (h,) = holon.autograd.grad(g.sum(), [x])
    v = x.detach().numpy()
    left, right = v[:, :3], v[:, 3:]
    wanted = np.concatenate([2 * right**2 + 4 * left * right, 2 * left**2 + 4 * left * right], 1)
    np.testing.assert_allclose(h.numpy(), wanted, rtol=1e-5, atol=1e-5)
