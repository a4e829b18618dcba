"""Every op of the older API on tensors of one device, against NumPy."""

import pathlib
import sys

import numpy as np
import oneflow as flow
import pytest
from oneflow.single_client import arrays, losses, math, nn, random, record, windows

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import op_cases as table  # noqa: E402

ELSEWHERE = {
    "argwhere": "not supported: test_ops_errors.py",
    "nonzero": "not supported: test_ops_errors.py",
    "random_mask_like": "test_random_masks",
    "sync_dynamic_resize": "not supported: test_ops_errors.py",
    "max_pool1d": "not supported: test_ops_errors.py",
    "avg_pool1d": "not supported: test_ops_errors.py",
    "PixelShuffle": "pixel_shuffle by another name",
}


def tensors(value):
    if isinstance(value, np.ndarray):
        return flow.tensor(value)
    if isinstance(value, list):
        return [tensors(v) for v in value]
    return value


def run(function, *args, **kwargs):
    """What a rank gets for a recorded call."""
    return record.apply(function.fn, tuple(map(tensors, args)), {k: tensors(v) for k, v in kwargs.items()})


def compare(found, expected, tolerance=1e-5):
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for f, e in zip(found, expected):
            compare(f, e, tolerance)
        return
    found = found.numpy() if isinstance(found, flow.Tensor) else found
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype or (found.dtype == np.float32 and expected.dtype == np.float64)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", table.cases, ids=str)
def test_values(case):
    kwargs = case.kwargs if case.training is None else {**case.kwargs, "training": case.training}
    compare(run(case.function, *case.args, **kwargs), case.expected)


def test_every_op_has_a_case():
    names = {n for module in (arrays, math, nn, losses, windows) for n in module.__all__}
    assert names - table.covered - set(ELSEWHERE) == set()


def test_dropout():
    flow.manual_seed(1)
    x = np.full((200, 300), 2, np.float32)
    y, again = (run(nn.dropout, x, 0.25, training=True).numpy() for _ in range(2))
    assert set(np.unique(y)) == {np.float32(0), np.float32(2 / 0.75)}
    assert abs((y == 0).mean() - 0.25) < 0.01 and (y != again).any()
    rows = run(nn.dropout, x, 0.5, [200, 1], training=True).numpy()
    assert set(np.unique(rows)) == {0, 4} and (rows == rows[:, :1]).all() and 0 < (rows[:, 0] == 0).mean() < 1


def test_random_masks():
    flow.manual_seed(1)
    mask = run(nn.random_mask_like, np.zeros((100, 100), np.float32), 0.3).numpy()
    assert mask.dtype == np.int8 and abs(mask.mean() - 0.7) < 0.02
    rows = run(nn.random_mask_like, np.zeros((100, 4), np.float32), 0.3, noise_shape=[100, 1]).numpy()
    assert rows.shape == (100, 4) and (rows == rows[:, :1]).all()


def test_random():
    flow.manual_seed(2)
    p = np.tile(np.array([0, 0.25, 1], np.float32), (2000, 1))
    drawn = run(random.bernoulli, p).numpy()
    assert (
        drawn.dtype == np.float32
        and (drawn[:, 0] == 0).all()
        and (drawn[:, 2] == 1).all()
        and abs(drawn[:, 1].mean() - 0.25) < 0.05
    )
    assert run(random.bernoulli, p, None, flow.int8).numpy().dtype == np.int8
    coins = run(random.coin_flip, 4000, probability=0.75).numpy()
    assert coins.dtype == np.int8 and coins.shape == (4000,) and abs(coins.mean() - 0.75) < 0.04
    order = run(random.generate_random_batch_permutation_indices, np.zeros((50, 2), np.float32)).numpy()
    assert order.dtype == np.int32 and sorted(order) == list(range(50)) and (order != np.arange(50)).any()
    x = np.arange(60, dtype=np.float32).reshape(30, 2)
    shuffled = run(random.shuffle, x).numpy()
    assert (shuffled != x).any()
    np.testing.assert_array_equal(shuffled[shuffled[:, 0].argsort()], x)
    assert random.gen_seed(5) == 5 and random.gen_seed() != random.gen_seed()


@pytest.mark.parametrize("function, args", [
    (windows.conv2d, (table.Im, table.W, 2, "SAME")),
    (windows.max_pool2d, (table.Im, 3, 2, "SAME_UPPER")),
    (windows.avg_pool2d, (table.Im, 3, 2, "SAME")),
    (windows.conv2d_transpose, (table.J, table.U, None, 2, "SAME")),
    (nn.layer_norm, (table.V, table.G, table.H)),
    (losses.sparse_cross_entropy, (table.L, table.P)),
    (math.reduce_variance, (table.V, [0])),
    (math.l2_normalize, (table.X,)),
    (math.unsorted_segment_sum, (table.X, np.array([3, 0, 3, 1], np.int32), 4)),
    (arrays.gather, (table.V, np.array([[1, 0], [3, 3]], np.int32), None, None, 1)),
], ids=lambda v: getattr(v, "__name__", ""))  # fmt: skip
def test_gradients(function, args):
    """Of the composed ops, against differences in float64."""
    args = [a.astype(np.float64) if isinstance(a, np.ndarray) and a.dtype == np.float32 else a for a in args]
    at = next(k for k, a in enumerate(args) if isinstance(a, np.ndarray) and a.dtype == np.float64)
    x = flow.tensor(args[at], requires_grad=True)
    inputs = [x if k == at else tensors(a) for k, a in enumerate(args)]
    y = function.fn(*inputs)
    weights = flow.tensor(np.random.default_rng(0).normal(size=tuple(y.shape)))
    (y * weights).sum().backward()
    step = np.random.default_rng(1).normal(size=args[at].shape)

    def total(sign):
        inputs[at] = flow.tensor(args[at] + sign * 1e-6 * step)
        return (function.fn(*inputs) * weights).sum().item()

    np.testing.assert_allclose((x.grad.numpy() * step).sum(), (total(1) - total(-1)) / 2e-6, rtol=1e-4, atol=1e-5)
