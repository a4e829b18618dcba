"""Initial values: their distribution, and that nothing but seed, name and whole shape decides them. Regularizers."""

import numpy as np
import oneflow as flow
import pytest
from oneflow.single_client import initializers, regularizers

B, S = flow.sbp.broadcast, flow.sbp.split


def filled(initializer, shape=(200, 300), name="w", dtype=flow.float32, seed=None):
    return initializer.fill(flow.empty(*shape, dtype=dtype), name, seed).numpy()


def test_constants():
    assert (filled(initializers.constant_initializer(2.5)) == 2.5).all()
    assert (filled(initializers.constant_initializer()) == 0).all()
    assert (filled(initializers.zeros_initializer(flow.float32)) == 0).all()
    ones = filled(initializers.ones_initializer(), (3,), dtype=flow.int32)
    assert (ones == 1).all() and ones.dtype == np.int32


def test_uniform():
    x = filled(initializers.random_uniform_initializer(-1, 3))
    assert x.min() >= -1 and x.max() < 3 and abs(x.mean() - 1) < 0.02 and abs(x.std() - 4 / np.sqrt(12)) < 0.02
    whole = filled(initializers.random_uniform_initializer(-2, 3), dtype=flow.int32)
    assert sorted(np.unique(whole)) == [-2, -1, 0, 1, 2]


def test_normal():
    x = filled(initializers.random_normal_initializer(2.0, 0.5))
    assert abs(x.mean() - 2) < 0.01 and abs(x.std() - 0.5) < 0.01 and np.abs(x - 2).max() > 1.5


@pytest.mark.parametrize("initializer, mean, stddev", [
    (initializers.truncated_normal(0.1), 0, 0.1), (initializers.truncated_normal(), 0, 1),
    (initializers.truncated_normal_initializer(1.0, 2.0), 1, 2)])  # fmt: skip
def test_truncated_normal(initializer, mean, stddev):
    x = (filled(initializer) - mean) / stddev
    assert np.abs(x).max() <= 2 + 1e-5 and np.abs(x).max() > 1.98
    assert abs(x.mean()) < 0.02 and abs(x.std() - 0.8796) < 0.01


KERNEL = (64, 32, 3, 5)  # fan_in 32 * 15, fan_out 64 * 15
LAST = (64, 3, 5, 32)


@pytest.mark.parametrize("initializer, shape, variance, limit", [
    (initializers.glorot_uniform_initializer(), (200, 300), 2 / 500, "uniform"),
    (initializers.xavier_uniform_initializer("NCHW"), KERNEL, 2 / (480 + 960), "uniform"),
    (initializers.xavier_uniform_initializer("NHWC"), LAST, 2 / (480 + 960), "uniform"),
    (initializers.glorot_normal_initializer(), (200, 300), 2 / 500, None),
    (initializers.xavier_normal_initializer(data_format="NHWC"), LAST, 2 / (480 + 960), None),
    (initializers.variance_scaling_initializer(), (200, 300), 1 / 300, "cut"),
    (initializers.variance_scaling_initializer(3.0, "fan_out", "random_normal"), (200, 300), 3 / 200, None),
    (initializers.variance_scaling_initializer(2, "fan_avg", "random_uniform"), (200, 300), 4 / 500, "uniform"),
    (initializers.kaiming_initializer(KERNEL), KERNEL, 2 / 480, None),
    (initializers.kaiming_initializer(KERNEL, "random_uniform", "fan_out", "tanh"), KERNEL, 25 / 9 / 960, "uniform"),
    (initializers.kaiming_initializer(LAST, mode="fan_avg", negative_slope=0.5, data_format="NHWC"), LAST,
     2 / 1.25 / 720, None),
    (initializers.kaiming_initializer((200, 300), nonlinearity="relu"), (200, 300), 2 / 300, None),
], ids=str)  # fmt: skip
def test_fans(initializer, shape, variance, limit):
    x = filled(initializer, shape)
    assert abs(x.mean()) < 0.01 and abs(x.var() / variance - 1) < 0.03
    largest = np.abs(x).max()
    if limit == "uniform":
        assert 0.99 < largest / np.sqrt(3 * variance) <= 1.0001
    elif limit == "cut":
        assert 0.98 < largest / (2 * np.sqrt(variance) / 0.8796) <= 1.0001
    else:
        assert largest > 3.5 * np.sqrt(variance)


def test_what_decides_the_values():
    normal = initializers.random_normal_initializer()
    x = filled(normal)
    np.testing.assert_array_equal(filled(normal), x)
    for other in (
        filled(normal, name="v"),
        filled(normal, seed=5),
        filled(initializers.random_normal_initializer(seed=5)),
    ):
        assert abs(np.corrcoef(x.ravel(), other.ravel())[0, 1]) < 0.02
    np.testing.assert_array_equal(filled(normal, seed=5), filled(initializers.random_normal_initializer(seed=5)))
    assert (filled(normal, seed=5) != filled(normal, name="v", seed=5)).mean() > 0.99
    before = flow.initial_seed()
    flow.manual_seed(77)
    try:
        assert (filled(normal) != x).mean() > 0.99
    finally:
        flow.manual_seed(before)
    np.testing.assert_array_equal(normal([200, 300], name="w").numpy(), x)


@pytest.mark.parametrize("initializer", [
    initializers.random_normal_initializer(1.0, 2.0), initializers.truncated_normal(0.1),
    initializers.xavier_uniform_initializer(), initializers.random_uniform_initializer(0, 9),
], ids=str)  # fmt: skip
def test_any_layout_has_the_same_values(initializer):
    flow.manual_seed(7)
    one = filled(initializer, (5, 4))

    def on(rank):
        flow.manual_seed(7)
        placement = flow.placement.all("cpu")
        found = []
        for sbp in (B, S(0), S(1)):
            t = flow.zeros(5, 4, placement=placement, sbp=sbp)
            found.append(initializer.fill(t, "w").numpy())
        return found

    for ranks in (2, 3):
        for arrays in flow.run_ranks(ranks, on):
            for x in arrays:
                np.testing.assert_array_equal(x, one)


@pytest.mark.parametrize("make, error, says", [
    (lambda: initializers.constant_initializer("0"), TypeError, "value is '0'"),
    (lambda: initializers.random_uniform_initializer(1, 0), ValueError, "minval 1 is more than maxval 0"),
    (lambda: initializers.truncated_normal(0), ValueError, "stddev is 0; it must be more than 0"),
    (lambda: initializers.random_normal_initializer(0, -1.0), ValueError, "stddev is -1.0"),
    (lambda: initializers.variance_scaling_initializer(-1), ValueError, "scale is -1"),
    (lambda: initializers.variance_scaling_initializer(1, "fan"), ValueError,
     "mode is 'fan'; it must be one of 'fan_in'"),
    (lambda: initializers.variance_scaling_initializer(1, distribution="normal"), ValueError,
     "distribution is 'normal'"),
    (lambda: initializers.glorot_normal_initializer(3), TypeError, "data_format is 3"),
    (lambda: initializers.kaiming_initializer((2, 3), "truncated_normal"), ValueError,
     "'random_normal', 'random_uniform'"),
    (lambda: initializers.kaiming_initializer((2, 3), nonlinearity="gelu"), ValueError, "nonlinearity is 'gelu'"),
    (lambda: initializers.kaiming_initializer(3), TypeError, "shape is 3"),
    (lambda: filled(initializers.xavier_normal_initializer(), ()), ValueError, "without axes"),
])  # fmt: skip
def test_bad_options(make, error, says):
    with pytest.raises(error, match=says):
        make()


def test_regularizers():
    w = flow.tensor([1.5, -2.0, 0.0])
    for made, expected in [
        (regularizers.l1_l2(0.1, 0.2), [0.4, -0.5, 0]),
        (regularizers.l1_l2(), [0.025, -0.03, 0]),
        (regularizers.l1(0.5), [0.5, -0.5, 0]),
        (regularizers.l2(), [0.015, -0.02, 0]),
        (regularizers.l1_l2(0, 0), [0, 0, 0]),
    ]:
        np.testing.assert_allclose(made.gradient(w).numpy(), np.array(expected, np.float32), rtol=1e-6)
    with pytest.raises(TypeError, match="l2 is 'a'"):
        regularizers.l2("a")
