"""In-place forms: values, what they refuse, and gradients through them."""

import numpy as np
import pytest

import holon as flow


def t(*values, dtype=flow.float32):
    return flow.tensor(list(values), dtype=dtype)


CALLS = [
    ("add_", (2,), lambda x: x + 2),
    ("sub_", (2,), lambda x: x - 2),
    ("mul_", (2,), lambda x: x * 2),
    ("div_", (2,), lambda x: x / 2),
    ("pow_", (2,), lambda x: x**2),
    ("clamp_", (-1, 1), lambda x: np.clip(x, -1, 1)),
    ("clip_", (-1, 1), lambda x: np.clip(x, -1, 1)),
    ("fill_", (7,), lambda x: np.full_like(x, 7)),
    ("zero_", (), np.zeros_like),
    ("exp_", (), np.exp),
    ("abs_", (), np.abs),
    ("neg_", (), np.negative),
    ("relu_", (), lambda x: np.maximum(x, 0)),
    ("floor_divide_", (2,), lambda x: x // 2),
    ("remainder_", (2,), lambda x: x % 2),
    ("leaky_relu_", (0.1,), lambda x: np.where(x > 0, x, 0.1 * x)),
    ("hardtanh_", (), lambda x: np.clip(x, -1, 1)),
    ("relu6_", (), lambda x: np.clip(x, 0, 6)),
    ("nan_to_num_", (), lambda x: x),
    ("clamp_min_", (0,), lambda x: np.maximum(x, 0)),
    ("maximum_", (0.5,), lambda x: np.maximum(x, 0.5)),
    ("trunc_", (), np.trunc),
]


@pytest.mark.parametrize("name, args, numpy", CALLS, ids=lambda v: v if isinstance(v, str) else "")
def test_values(name, args, numpy):
    before = np.array([[-2.5, 0.5], [1.5, 3.0]], np.float32)
    x = flow.tensor(before)
    address = x.data_ptr()
    assert getattr(x, name)(*args) is x
    assert x.data_ptr() == address
    np.testing.assert_allclose(x.numpy(), numpy(before), rtol=1e-6)
    # A window on a tensor is written to where it lies.
    whole = flow.tensor(np.tile(before, (1, 2)))
    getattr(whole[:, 1:3], name)(*args)
    want = np.tile(before, (1, 2))
    want[:, 1:3] = numpy(want[:, 1:3])
    np.testing.assert_allclose(whole.numpy(), want, rtol=1e-6)


def test_with_tensors():
    x = t(1, 2, 3)
    x.add_(t(1, 1, 1)).mul_(t(2)).sub_(t(1, 0, 0), alpha=2)
    assert x.numpy().tolist() == [2, 6, 8]
    assert x.addcmul_(t(1, 1, 1), t(2, 2, 2), value=0.5).numpy().tolist() == [3, 7, 9]
    assert x.addcdiv_(t(1, 1, 1), t(1, 1, 0.5)).numpy().tolist() == [4, 8, 11]
    assert x.lerp_(t(0, 0, 1), 0.5).numpy().tolist() == [2, 4, 6]
    assert x.masked_fill_(t(1, 0, 0) > 0, 9).numpy().tolist() == [9, 4, 6]
    assert x.copy_(t(5, dtype=flow.int64)).numpy().tolist() == [5, 5, 5]
    assert x.clamp_(t(6, 0, 0), t(9, 9, 3)).numpy().tolist() == [6, 5, 3]
    assert x.div_(2, rounding_mode="floor").numpy().tolist() == [3, 2, 1]
    assert x.erfinv_().numpy()[2] == np.inf
    y = t(1, 2, dtype=flow.int64)
    y += 1
    y *= t(2, 3, dtype=flow.int64)
    y -= True
    assert y.numpy().tolist() == [3, 8] and y.dtype == flow.int64
    y <<= 1
    y &= 6
    assert y.numpy().tolist() == [6, 0]
    y //= 4
    assert y.numpy().tolist() == [1, 0]


def test_smaller_dtypes_of_one_category_take_the_result():
    x = flow.ones(3, dtype=flow.float16)
    assert x.add_(flow.ones(3, dtype=flow.float64)).dtype == flow.float16
    x = flow.ones(3, dtype=flow.int8)
    assert x.add_(flow.full((3,), 300)).numpy().tolist() == [45, 45, 45]
    x = flow.ones(3)
    assert x.eq_(1).dtype == flow.float32 and x.numpy().tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.add_(0.5),
        lambda x: x.mul_(0.5),
        lambda x: x.div_(2),
        lambda x: x.div_(flow.ones(3, dtype=flow.int64)),
        lambda x: x.add_(flow.ones(3)),
        lambda x: x.clamp_(0.5),
        lambda x: x.exp_(),
        lambda x: x.sqrt_(),
        lambda x: x.pow_(0.5),
        lambda x: x.masked_fill_(x > 0, 0.5),
        lambda x: x.add_(flow.ones(3)[0]),
        lambda x: x.sigmoid_(),
    ],
)
def test_integers_do_not_take_fractions(call):
    x = flow.ones(3, dtype=flow.int64)
    with pytest.raises(TypeError, match="int64"):
        call(x)
    assert x.numpy().tolist() == [1, 1, 1]


def test_bools_do_not_take_integers():
    with pytest.raises(TypeError, match="bool"):
        flow.ones(3, dtype=flow.bool).add_(1)


@pytest.mark.parametrize(
    "call",
    [lambda x: x.add_(flow.ones(2, 3)), lambda x: x.mul_(flow.ones(2, 1)), lambda x: x.maximum_(flow.ones(4, 1))],
)
def test_a_tensor_does_not_grow(call):
    with pytest.raises(ValueError, match=r"\[3\]"):
        call(flow.ones(3))


def test_gradients_go_through():
    x = flow.tensor([-1.0, 2.0, 3.0], requires_grad=True)
    y = x * 2
    y.mul_(y)  # reads what it overwrites
    y.add_(1, alpha=3) if False else y.add_(1)
    z = flow.nn.functional.leaky_relu(y - 20, 0.5, inplace=True)
    flow.nn.functional.silu(z, inplace=True)
    z.sum().backward()
    u = 4 * np.array([1.0, 4.0, 9.0]) + 1 - 20
    v = np.where(u > 0, u, 0.5 * u)
    s = 1 / (1 + np.exp(-v))
    want = s * (1 + v * (1 - s)) * np.where(u > 0, 1, 0.5) * 8 * np.array([-1.0, 2.0, 3.0])
    np.testing.assert_allclose(x.grad.numpy(), want, rtol=1e-5)


def test_filling_cuts_the_gradient():
    x = flow.ones(3, requires_grad=True)
    y = x * 2
    y.zero_()
    (y + x).sum().backward()
    assert x.grad.numpy().tolist() == [1, 1, 1]
    y = flow.ones(3, requires_grad=True) * 2
    y.normal_()
    y.sum().backward()


def test_leaves_that_require_grad_are_refused():
    x = flow.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf"):
        x.add_(1)
    with flow.no_grad():
        x.add_(1)
    assert x.detach().numpy().tolist() == [2, 2, 2]


def test_global():
    def rank(_):
        p = flow.placement.all("cpu")
        out = []
        for sbp in (flow.sbp.split(0), flow.sbp.broadcast, flow.sbp.partial_sum):
            x = flow.ones(5, placement=p, sbp=flow.sbp.broadcast).to_global(p, sbp)
            x.add_(flow.arange(5, placement=p, sbp=flow.sbp.split(0))).mul_(2).clamp_(max=7).sub_(1, alpha=2)
            assert x.sbp == (sbp,)
            out.append(x.full_value().numpy().tolist())
        return out

    for values in flow.run_ranks(2, rank)[0]:
        assert values == [0, 2, 4, 5, 5]
