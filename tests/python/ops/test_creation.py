"""Making tensors: the forms of a size, the new_* methods, and global tensors of every sbp."""

import numpy as np
import pytest

import holon as flow


@pytest.mark.parametrize(
    "make",
    [
        flow.zeros,
        flow.ones,
        flow.empty,
        flow.rand,
        flow.randn,
        flow.ones(1).new_zeros,
        flow.ones(1).new_ones,
        flow.ones(1).new_empty,
    ],
)
def test_a_size_is_given_in_any_form(make):
    for args in ((2, 3), ((2, 3),), ([2, 3],), (flow.ones(2, 3).shape,), (np.array([2, 3]),)):
        assert tuple(make(*args).shape) == (2, 3)
    assert tuple(make(5).shape) == (5,) and tuple(make((0, 4)).shape) == (0, 4) and tuple(make(()).shape) == ()


def test_like_and_new_take_what_is_not_said_from_the_tensor():
    x = flow.ones(2, 3, dtype=flow.float64)
    for y in (
        flow.empty_like(x),
        flow.zeros_like(x),
        x.new_empty(2, 3),
        x.new_full((2, 3), 7),
        x.new_tensor([[1, 2, 3], [4, 5, 6]]),
        flow.full_like(x, 7),
    ):
        assert y.dtype == flow.float64 and tuple(y.shape) == (2, 3) and not y.requires_grad
    assert flow.empty_like(x, dtype=flow.int32).dtype == x.new_ones(2, dtype=flow.int32).dtype == flow.int32
    assert flow.zeros_like(x, requires_grad=True).requires_grad and x.new_zeros(2, requires_grad=True).requires_grad
    assert x.new_full((2,), 7).tolist() == [7, 7]


def test_global():
    def rank(_):
        p = flow.placement.all("cpu")
        made = {
            "zeros": lambda **k: flow.zeros(5, 4, **k),
            "ones": lambda **k: flow.ones(5, 4, **k),
            "full": lambda **k: flow.full((5, 4), 2.5, **k),
            "eye": lambda **k: flow.eye(5, 4, **k),
            "arange": lambda **k: flow.arange(5.0, **k),
            "linspace": lambda **k: flow.linspace(0, 1, 5, **k),
            "logspace": lambda **k: flow.logspace(0, 1, 5, **k),
            "hann_window": lambda **k: flow.hann_window(5, **k),
            "tril_indices": lambda **k: flow.tril_indices(5, 4, **k),
            "tensor": lambda **k: flow.tensor(np.arange(10.0), **k),
        }
        for name, make in made.items():
            want = make().numpy()
            for sbp in (flow.sbp.split(0), flow.sbp.broadcast, flow.sbp.partial_sum):
                x = make(placement=p, sbp=sbp)
                assert x.is_global and x.sbp == (sbp,), name
                np.testing.assert_allclose(x.full_value().numpy(), want, rtol=1e-6)
                y = flow.zeros_like(x)
                assert y.sbp == x.sbp and y.placement == p
                assert x.new_ones(6, 4).sbp == x.sbp
        assert tuple(flow.empty(5, 4, placement=p, sbp=flow.sbp.split(1)).to_local().shape)[0] == 5
        return True

    assert flow.run_ranks(3, rank) == [True] * 3


def test_placement_and_sbp_belong_together():
    p = flow.placement.all("cpu")
    for kwargs in (
        {"placement": p},
        {"sbp": flow.sbp.broadcast},
        {"placement": p, "sbp": flow.sbp.broadcast, "device": "cpu"},
    ):
        with pytest.raises(ValueError, match="ones"):
            flow.ones(2, **kwargs)


def test_triangles_of_any_size_end():
    assert tuple(flow.tril_indices(2**62, 0).shape) == (2, 0) and tuple(flow.triu_indices(2**62, 3, 2**40).shape) == (
        2,
        0,
    )
    assert flow.triu_indices(2**40, 2).tolist() == [[0, 0, 1], [0, 1, 1]]
    with pytest.raises(ValueError, match="more elements than fit in memory"):
        flow.tril_indices(2**62, 2**62)
