"""Gradient modes, grad, and functions with a backward of their own."""
import numpy as np
import pytest

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
            places = (a > b)
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
