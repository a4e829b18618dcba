"""Python's operators, reflected and in place, and the derivatives of activations that are differentiated twice."""

import operator

import numpy as np
import pytest

import holon as flow

FLOAT_OPS = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.pow,
    operator.eq,
    operator.ne,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
]
INT_OPS = [
    operator.and_,
    operator.or_,
    operator.xor,
    operator.lshift,
    operator.rshift,
    operator.add,
    operator.sub,
    operator.mul,
    operator.floordiv,
    operator.mod,
    operator.pow,
]


@pytest.mark.parametrize("op", FLOAT_OPS, ids=lambda o: o.__name__)
def test_floats(op):
    x, y = np.array([0.5, 2.0, 3.0]), np.array([2.0, 2.0, 0.5])
    for left, right in ((x, y), (x, 1.5), (1.5, y), (x, 2), (2, y)):
        as_tensor = lambda v: flow.tensor(v) if isinstance(v, np.ndarray) else v
        np.testing.assert_allclose(op(as_tensor(left), as_tensor(right)).numpy(), op(left, right), rtol=1e-12)


@pytest.mark.parametrize("op", INT_OPS, ids=lambda o: o.__name__)
def test_integers(op):
    x, y = np.array([5, 9, 12]), np.array([1, 3, 2])
    for left, right in ((x, y), (x, 3), (3, y)):
        as_tensor = lambda v: flow.tensor(v) if isinstance(v, np.ndarray) else v
        result = op(as_tensor(left), as_tensor(right))
        assert result.dtype == flow.int64 and result.numpy().tolist() == op(left, right).tolist()


def test_unary_and_bools():
    x = flow.tensor([1, -2])
    assert (
        (-x).tolist() == [-1, 2] and (+x).tolist() == [1, -2] and abs(x).tolist() == [1, 2] and (~x).tolist() == [-2, 1]
    )
    m = flow.tensor([True, False])
    assert (~m).tolist() == [False, True] and (m & True).tolist() == [True, False] and (m | m).tolist() == [True, False]
    assert (m ^ m).dtype == flow.bool and (m & 3).dtype == flow.int64
    assert (x == None) is False and (x != "a") is True  # noqa: E711
    for bad in ([1, 2], "a", None):
        with pytest.raises(TypeError):
            x + bad
    with pytest.raises(TypeError, match="integers and bools"):
        flow.ones(2) & x


def test_close_and_equal_are_bools():
    x = flow.ones(3)
    assert (
        flow.allclose(x, x + 1e-9) is True
        and x.allclose(x + 1) is False
        and flow.equal(x, x) is True
        and x.equal(x[:2]) is False
    )

    def rank(_):
        y = flow.ones(5, placement=flow.placement.all("cpu"), sbp=flow.sbp.split(0))
        return flow.allclose(y, y), flow.equal(y, y + 1), flow.isclose(y, y).full_value().tolist()

    assert flow.run_ranks(2, rank)[1] == (True, False, [True] * 5)


@pytest.mark.parametrize(
    "name",
    [
        "relu",
        "tanh",
        "sigmoid",
        "gelu",
        "silu",
        "mish",
        "softplus",
        "elu",
        "selu",
        "celu",
        "hardswish",
        "logsigmoid",
        "softsign",
        "quick_gelu",
        "sqrt",
        "rsqrt",
        "sin",
        "cos",
        "erf",
        "reciprocal",
        "exp",
        "log",
        "square",
    ],
)
def test_second_derivatives_follow_differences(name):
    values = np.array([0.3, 0.9, 1.7, 2.6])
    if name not in ("sqrt", "rsqrt", "log", "reciprocal"):
        values = np.concatenate([-values, values])
    function = getattr(flow.nn.functional, name)

    def slope(v, twice=False):
        x = flow.tensor(v, requires_grad=True)
        (g,) = flow.autograd.grad(function(x).sum(), [x], create_graph=twice)
        return (x, g) if twice else g.numpy()

    x, g = slope(values, True)
    if g.requires_grad:
        (second,) = flow.autograd.grad(g.sum(), [x], allow_unused=True)
        second = np.zeros_like(values) if second is None else second.numpy()
    else:
        second = np.zeros_like(values)
    np.testing.assert_allclose(second, (slope(values + 1e-5) - slope(values - 1e-5)) / 2e-5, atol=1e-6, rtol=1e-6)


def test_flat_functions_have_zero_gradients_even_of_infinity():
    for name in ("sign", "floor", "ceil", "round", "trunc"):
        x = flow.ones(2, requires_grad=True)
        getattr(flow, name)(x).backward(flow.tensor([float("inf"), float("nan")]))
        assert x.grad.tolist() == [0, 0]
    for call in (lambda x: x**0, lambda x: x ** flow.zeros(2), lambda x: 0 ** (x + 1), lambda x: flow.sinc(x)):
        x = flow.zeros(2, requires_grad=True)
        call(x).sum().backward()
        assert x.grad.tolist() == [0, 0]
    # At a bound the gradient of clamp is that of x; of hardtanh it is 0, as in PyTorch.
    x = flow.tensor([-1.0, 1.0, 2.0], requires_grad=True)
    x.clamp(-1, 1).sum().backward()
    assert x.grad.tolist() == [1, 1, 0]
    x.grad = None
    flow.nn.functional.hardtanh(x).sum().backward()
    assert x.grad.tolist() == [0, 0, 0]


def test_functional_takes_inplace():
    F = flow.nn.functional
    for name, args in (
        ("relu", ()),
        ("relu6", ()),
        ("leaky_relu", (0.1,)),
        ("elu", (1.0,)),
        ("hardtanh", (-1.0, 1.0)),
        ("silu", ()),
        ("threshold", (0.1, 20.0)),
    ):
        x = flow.tensor([-2.0, 3.0])
        y = getattr(F, name)(x, *args)
        assert x.tolist() == [-2, 3]
        assert getattr(F, name)(x, *args, inplace=True) is x and x.tolist() == y.tolist()
        x = flow.tensor([-2.0, 3.0])
        assert getattr(F, name)(x, *args, True) is x and x.tolist() == y.tolist()


def test_sparse_softmax_cross_entropy_refuses_labels_that_are_no_class():
    for label in (-1, 3):
        with pytest.raises(IndexError, match=f"target {label} .*outside"):
            flow.nn.functional.sparse_softmax_cross_entropy(flow.tensor([0, label]), flow.ones(2, 3))


def test_forms_with_a_keyword_say_what_is_wrong():
    x = flow.ones(3)
    with pytest.raises(TypeError, match="argument other is missing"):
        flow.add(x)
    with pytest.raises(TypeError, match="argument other is missing.*alpha"):
        flow.add(x, alpha=2)
    with pytest.raises(TypeError, match="no argument 'beta'"):
        x.add(x, beta=2)
    assert (
        flow.sub(x, x, alpha=3).tolist() == [-2] * 3 and flow.div(x * 3, 2, rounding_mode="trunc").tolist() == [1] * 3
    )


def test_a_dtype_asked_of_sums_and_products_is_each_elements():
    x = flow.tensor([1.7, 1.7])
    assert x.sum(dtype=flow.int64).item() == 2 and x.sum(0, dtype=flow.int32).item() == 2
    assert x.cumsum(0, dtype=flow.int64).tolist() == [1, 2]
    y = flow.tensor([2.9, 2.9, 1.9])
    assert y.prod(dtype=flow.int64).item() == 4 and y.cumprod(0, dtype=flow.int64).tolist() == [2, 4, 4]
    assert flow.nansum(y, dtype=flow.int64).item() == 5
    assert flow.tensor([1, -1]).sum(dtype=flow.bool).item() is True
    # Nor is anything lost on the way to a wider one.
    many = flow.full([1 << 12], 0.1, dtype=flow.float32)
    np.testing.assert_allclose(many.sum(dtype=flow.float64).item(), 4096 * float(np.float32(0.1)), rtol=1e-12)
    a = flow.tensor([1.5, 2.5], requires_grad=True)
    a.sum(dtype=flow.float64).backward()
    assert a.grad.tolist() == [1, 1] and a.grad.dtype == flow.float32


@pytest.mark.parametrize("sbp", [flow.sbp.split(0), flow.sbp.broadcast], ids=str)
def test_a_dtype_asked_of_the_sum_of_a_divided_tensor(sbp):
    def check(rank):
        x = flow.tensor([1.7, 1.7, 2.9], placement=flow.placement.all("cpu"), sbp=sbp)
        assert x.sum(dtype=flow.int64).item() == 4

    flow.run_ranks(2, check)


def test_masks_and_what_they_fill_broadcast_to_one_shape():
    x, mask = (
        flow.tensor([1.0, 2.0, 3.0], requires_grad=True),
        flow.tensor([[True, False, False], [False, False, True]]),
    )
    y = x.masked_fill(mask, 9.0)
    assert y.tolist() == [[9, 2, 3], [1, 2, 9]]
    y.sum().backward()
    assert x.grad.tolist() == [1, 2, 1]
    with pytest.raises(ValueError, match="shape"):
        flow.zeros(3).masked_fill_(mask, 1.0)

    def check(rank):
        p = flow.placement.all("cpu")
        for sbp in (flow.sbp.broadcast, flow.sbp.split(0)):
            a = flow.tensor([1.0, 2.0, 3.0], placement=p, sbp=sbp)
            m = flow.tensor(mask.numpy(), placement=p, sbp=sbp)
            assert a.masked_fill(m, 9.0).numpy().tolist() == [[9, 2, 3], [1, 2, 9]]

    flow.run_ranks(2, check)


def test_a_single_element_is_a_row_of_one_to_gather():
    x = flow.tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = flow.gather(x, 0, flow.tensor(2))
    assert y.shape == () and y.item() == 3
    y.backward()
    assert x.grad.tolist() == [0, 0, 1]
    assert flow.gather(flow.tensor(5.0), 0, flow.tensor([0, 0])).tolist() == [5, 5]
    with pytest.raises(IndexError):
        flow.gather(x, 0, flow.tensor(3))

    def check(rank):
        p = flow.placement.all("cpu")
        a = flow.tensor([1.0, 2.0, 3.0], placement=p, sbp=flow.sbp.split(0))
        assert flow.gather(a, 0, flow.tensor(2, placement=p, sbp=flow.sbp.broadcast)).numpy().item() == 3

    flow.run_ranks(2, check)


@pytest.mark.parametrize("dtype", ["bool", "float32", "int64"])
def test_one_index_of_a_divided_tensor(dtype):
    values = np.arange(6).reshape(3, 2) % 2

    def check(rank):
        p = flow.placement.all("cpu")
        for sbp in (flow.sbp.split(0), flow.sbp.split(1), flow.sbp.broadcast):
            x = flow.tensor(values, placement=p, sbp=sbp).to(getattr(flow, dtype))
            if dtype == "float32":
                x.requires_grad_()
            for dim in (0, 1):
                y = flow.index_select(x, dim, flow.tensor(1, placement=p, sbp=flow.sbp.broadcast))
                np.testing.assert_array_equal(y.numpy().astype(int), np.take(values, [1], dim))
                if dtype == "float32":
                    x.grad = None
                    y.sum().backward()
                    want = np.zeros((3, 2))
                    want[(1, slice(None)) if dim == 0 else (slice(None), 1)] = 1
                    np.testing.assert_array_equal(x.grad.numpy(), want)

    flow.run_ranks(2, check)


def test_cat_begins_with_nothing():
    x = flow.ones(2, 3, requires_grad=True)
    for tensors in ([flow.zeros(0), x], [x, flow.zeros(0)], [flow.zeros(0), flow.zeros(0), x]):
        assert flow.cat(tensors, 1).shape == (2, 3) and flow.cat(tensors, dim=-1).shape == (2, 3)
    flow.cat([flow.zeros(0), x, x], 0).sum().backward()
    assert x.grad.tolist() == [[2.0] * 3] * 2
    assert flow.cat([flow.zeros(0), flow.zeros(0)]).shape == (0,) and flow.cat([flow.zeros(0), flow.ones(2)]).shape == (
        2,
    )
    with pytest.raises(ValueError, match="numbers of axes differ"):
        flow.cat([flow.zeros(0, 1), flow.ones(2, 3, 4)])

    def check(rank):
        p = flow.placement.all("cpu")
        a = flow.zeros(0, placement=p, sbp=flow.sbp.broadcast)
        b = flow.tensor(np.arange(6.0).reshape(3, 2), placement=p, sbp=flow.sbp.split(0))
        np.testing.assert_array_equal(
            flow.cat([a, b, b], 1).numpy(), np.concatenate([np.arange(6).reshape(3, 2)] * 2, 1)
        )

    flow.run_ranks(2, check)


def test_the_median_of_nothing():
    assert np.isnan(flow.zeros(0).median().item()) and np.isnan(flow.zeros(2, 0).median().item())
    with pytest.raises(ValueError, match="integers without elements"):
        flow.zeros(0, dtype=flow.int64).median()


def test_the_norm_of_order_0_has_the_gradient_zero():
    x = flow.tensor([0.0, 2.0, -3.0], requires_grad=True)
    y = flow.linalg.vector_norm(x, ord=0)
    assert y.item() == 2
    y.backward()
    assert x.grad.tolist() == [0, 0, 0]
    assert flow.linalg.vector_norm(flow.tensor([[0.0, 1.0], [0.0, 0.0]]), 0, dim=1).tolist() == [1, 0]


@pytest.mark.parametrize(
    "options", [{"stride": []}, {"kernel_size": []}, {"dilation": [1, 1, 1]}, {"padding": [2**63 - 1] * 2}], ids=str
)
@pytest.mark.parametrize("op", ["unfold", "fold"])
def test_windows_of_images_have_two_sizes(op, options):
    given = {"kernel_size": 2, **options}
    with pytest.raises(ValueError, match=f"{op}: {next(iter(options))} must be one number or 2, each from"):
        flow.nn.functional.unfold(flow.ones(1, 2, 3, 3), **given) if op == "unfold" else flow.nn.functional.fold(
            flow.ones(1, 8, 4), 3, **given
        )
    assert flow.nn.functional.unfold(flow.ones(1, 2, 3, 3), [2]).shape == (1, 8, 4)


@pytest.mark.parametrize("name", ["max_pool1d", "max_pool2d", "max_pool3d"])
@pytest.mark.parametrize("big", [2**31, 2**62, 2**63 - 1])
def test_dilations_that_overflow(name, big):
    x = flow.ones(1, 1, *[4] * int(name[-2]))
    with pytest.raises(ValueError, match=f"{name}: dilation must be one number"):
        getattr(flow.nn.functional, name)(x, 2, dilation=big)


def test_diagonals_beyond_all_numbers():
    x = flow.ones(3, 4)
    for far in (2**63 - 1, 2**62, 100):
        assert flow.tril(x, far).numpy().all() and not flow.triu(x, far).numpy().any()
        assert flow.triu(x, -far).numpy().all() and not flow.tril(x, -far).numpy().any()
    assert flow.triu(x, -(2**63)).numpy().all()


def test_a_transposed_convolution_may_have_no_place():
    x, w = flow.ones(2, 1, 2, requires_grad=True), flow.ones(1, 3, 1, requires_grad=True)
    y = flow.nn.functional.conv_transpose1d(x, w, flow.ones(3), padding=1)
    assert y.shape == (2, 3, 0)
    y.sum().backward()
    assert not x.grad.numpy().any() and x.grad.shape == x.shape
    with pytest.raises(ValueError, match="has the size -1"):
        flow.nn.functional.conv_transpose1d(flow.ones(1, 1, 1), flow.ones(1, 1, 1), padding=1)


def test_a_range_of_too_many_elements():
    for start, end in ((0, 2**63 - 1), (-(2**63), 2**63 - 1), (0, 1e300)):
        with pytest.raises(ValueError, match="arange: from .* has more elements than fit in memory"):
            flow.arange(start, end)
