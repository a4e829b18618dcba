"""utils.checkpoint: gradients as without it, the same draws the second time, and nothing kept in between."""

import numpy as np
import pytest
from holon.utils.checkpoint import checkpoint, checkpoint_sequential

import holon
from holon import amp, nn, sbp


def block(p):
    return nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Dropout(p), nn.Linear(16, 4))


def gradients(run, p=0.5):
    holon.manual_seed(3)
    model = block(p)
    x = holon.arange(8).reshape(2, 4).float()
    x.requires_grad_()
    run(model, x).square().sum().backward()
    return [x.grad.numpy(), *(t.grad.numpy() for t in model.parameters())]


def test_gradients_and_draws_are_those_without_it():
    expected = gradients(lambda m, x: m(x))
    for got, want in zip(gradients(lambda m, x: checkpoint(m, x)), expected):
        np.testing.assert_array_equal(got, want)
    for got, want in zip(gradients(lambda m, x: checkpoint_sequential(m, 2, x)), expected):
        np.testing.assert_array_equal(got, want)


def test_draws_after_it_go_on_where_they_would():
    def after(run):
        holon.manual_seed(0)
        model, x = block(0.5), holon.ones(2, 4, requires_grad=True)
        run(model, x).sum().backward()
        return holon.rand(3).tolist()

    assert after(lambda m, x: checkpoint(m, x)) == after(lambda m, x: m(x))


def test_the_function_runs_once_more_in_backward_and_only_then():
    calls = []

    def twice(x, y, *, scale):
        calls.append(holon.is_grad_enabled())
        return x * scale, y

    x = holon.ones(2, requires_grad=True)
    a, b = checkpoint(twice, x, holon.ones(1), scale=2.0)
    assert len(calls) == 1 and b.tolist() == [1.0]
    a.sum().backward()
    assert len(calls) == 2 and calls[1] and x.grad.tolist() == [2.0, 2.0]
    with holon.no_grad():
        checkpoint(lambda x: twice(x, x, scale=1.0), x)
    assert len(calls) == 3


def test_mixed_precision_is_as_it_was():
    dtypes = []

    def product(x, w):
        y = x @ w
        dtypes.append(y.dtype)
        return y

    w = holon.ones(4, 4, requires_grad=True)
    with amp.autocast("cpu", dtype=holon.bfloat16):
        y = checkpoint(product, holon.ones(2, 4), w)
    y.float().sum().backward()
    assert dtypes == [holon.bfloat16] * 2 and w.grad.dtype == holon.float32


def test_global_tensors():
    def check(rank):
        p = holon.placement.all("cpu")

        def run(function):
            holon.manual_seed(3)
            model = block(0.5).to_global(p, sbp.broadcast)
            x = (
                holon.arange(8, placement=p, sbp=sbp.broadcast)
                .reshape(2, 4)
                .float()
                .to_global(sbp=sbp.split(0))
                .detach()
                .requires_grad_()
            )
            function(model, x).square().sum().backward()
            assert x.grad.sbp == (sbp.split(0),)
            return [x.grad.numpy(), *(t.grad.numpy() for t in model.parameters())]

        for got, want in zip(run(checkpoint), run(lambda m, x: m(x))):
            np.testing.assert_array_equal(got, want)

    holon.run_ranks(2, check)


def test_wrong_segments():
    with pytest.raises(ValueError, match="5 segments of 4 functions"):
        checkpoint_sequential(block(0.0), 5, holon.ones(1, 4))
