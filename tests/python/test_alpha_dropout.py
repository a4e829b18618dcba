"""AlphaDropout keeps mean 0 and variance 1, and draws by logical index."""

import numpy as np
import pytest

import holon as flow
from holon import nn


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_moments_and_values(p):
    flow.manual_seed(1)
    x = flow.randn(200_000, dtype=flow.float64)
    y = nn.functional.alpha_dropout(x, p, True).numpy()
    assert abs(y.mean()) < 0.02 and abs(y.var() - 1) < 0.03
    alpha = 1.7580993408473766
    a = ((alpha**2 * p + 1) * (1 - p)) ** -0.5
    b = a * alpha * p
    dropped = np.isclose(y, -alpha * a + b)
    np.testing.assert_allclose(y[~dropped], a * x.numpy()[~dropped] + b, atol=1e-12)
    assert abs(dropped.mean() - p) < 0.01


def test_modes():
    x = flow.randn(4, 3, 5)
    assert nn.functional.alpha_dropout(x) is x  # in PyTorch, too, training is False by default
    layer = nn.AlphaDropout(0.5)
    assert not np.array_equal(layer(x).numpy(), x.numpy())
    assert layer.eval()(x) is x
    assert repr(nn.AlphaDropout(0.2)) == "AlphaDropout(p=0.2, inplace=False)"
    assert nn.functional.alpha_dropout(x, 1.0, True).numpy().any() == 0
    with pytest.raises(ValueError, match="AlphaDropout: p is 2"):
        nn.AlphaDropout(2)
    y = x.clone()
    assert nn.functional.alpha_dropout(y, 0.5, True, inplace=True) is y
    assert not np.array_equal(y.numpy(), x.numpy())


def test_whole_channels():
    flow.manual_seed(3)
    y = nn.FeatureAlphaDropout(0.5)(flow.ones(20, 10, 4, 2)).numpy()
    assert (y == y[:, :, :1, :1]).all()
    assert 0.35 < (y[:, :, 0, 0] < 0).mean() < 0.65


def test_gradients():
    flow.manual_seed(4)
    x = flow.randn(50, requires_grad=True)
    y = nn.functional.alpha_dropout(x, 0.4, True)
    y.sum().backward()
    alpha, p = 1.7580993408473766, 0.4
    a = ((alpha**2 * p + 1) * (1 - p)) ** -0.5
    dropped = np.isclose(y.detach().numpy(), -alpha * a + a * alpha * p, atol=1e-5)
    np.testing.assert_allclose(x.grad.numpy(), np.where(dropped, 0, a), rtol=1e-5)


def test_the_same_on_any_layout():
    def run(rank):
        placement = flow.placement("cpu", [0, 1])
        out = []
        for sbp in (flow.sbp.broadcast, flow.sbp.split(0), flow.sbp.split(1)):
            flow.manual_seed(5)
            x = flow.ones(4, 6, placement=placement, sbp=sbp)
            for f in (nn.functional.alpha_dropout, nn.functional.feature_alpha_dropout):
                out.append(f(x, 0.5, True).to_global(placement, flow.sbp.broadcast).to_local().numpy())
        return out

    for out in flow.run_ranks(2, run):
        for k in range(2):
            for other in out[k + 2 :: 2]:
                np.testing.assert_array_equal(out[k], other)
