"""utils.global_view: nested values between the two views, and regions in which new tensors are global."""

import warnings
from collections import OrderedDict, namedtuple

import pytest
from holon.utils.global_view import current_global_mode, global_mode, to_global, to_local

import holon
from holon import sbp

P = lambda: holon.placement.all("cpu")  # noqa: E731
Pair = namedtuple("Pair", "left right")


def test_nested_values():
    def check(rank):
        value = OrderedDict(
            a=holon.ones(2), b=[holon.ones(3) * rank, (holon.ones(1), None)], c=Pair(holon.ones(2), holon.ones(2))
        )
        whole = to_global(value, P(), sbp.split(0))
        assert type(whole) is OrderedDict and type(whole["c"]) is Pair and whole["b"][1][1] is None
        assert whole["a"].shape == (4,) and whole["b"][0].tolist() == [0] * 3 + [1] * 3
        back = to_local(whole)
        assert back["b"][0].tolist() == [rank] * 3 and back["c"].right.is_local
        again = to_global(whole, sbp=lambda d, t: sbp.broadcast if t.shape[0] == 4 else sbp.split(0))
        assert again["a"].sbp == (sbp.broadcast,) and again["b"][0].sbp == (sbp.split(0),)
        assert to_global([holon.ones(2)], P(), lambda t: sbp.broadcast)[0].sbp == (sbp.broadcast,)
        copied = to_local(whole, copy=True)
        copied["a"].fill_(7.0)
        assert whole["a"].to_local().tolist() == [1, 1]

    holon.run_ranks(2, check)


def test_what_is_no_tensor_stays_with_a_warning():
    with pytest.warns(UserWarning, match="a int is not a tensor"):
        assert to_global([3], holon.placement("cpu", [0]), sbp.broadcast) == [3]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert to_global([3], holon.placement("cpu", [0]), sbp.broadcast, warn_on_non_tensor_leaf=False) == [3]
    with pytest.raises(ValueError, match="neither a placement nor an sbp"):
        to_global(holon.ones(1))


def test_new_tensors_in_the_region_are_global():
    def check(rank):
        with global_mode(True, P(), sbp.split(0)) as mode:
            made = [
                holon.zeros(4),
                holon.ones(4, 2),
                holon.full([4], 2.0),
                holon.arange(4),
                holon.linspace(0, 1, 4),
                holon.eye(4),
                holon.rand(4),
                holon.randn(4, device="cpu"),
                holon.randint(0, 3, (4,)),
                holon.randperm(4),
                holon.empty(4),
                holon.tensor([1, 2, 3, 4]),
                holon.hann_window(4),
                holon.zeros([4], dtype=holon.int8),
            ]
            assert all(t.is_global and t.sbp == (sbp.split(0),) and t.placement == P() for t in made)
            assert holon.tensor([1, 2, 3, 4]).to_local().tolist() == [[1, 2], [3, 4]][rank]
            assert made[0].device == holon.device("cpu") and made[0].to(made[0].device).is_global
            # What the call says counts, and what is derived from a tensor follows it.
            assert holon.ones(2, placement=P(), sbp=sbp.broadcast).sbp == (sbp.broadcast,)
            assert holon.zeros_like(made[1]).is_global
            now = current_global_mode()
            assert now.is_enabled and now.placement == P() and now.sbp == (sbp.split(0),)
            with global_mode(False):
                assert holon.ones(2).is_local and not current_global_mode().is_enabled
            with global_mode(True, P(), sbp.broadcast):
                assert holon.ones(2).sbp == (sbp.broadcast,)
            assert holon.ones(2).sbp == (sbp.split(0),)
            assert mode is not None
        assert holon.ones(2).is_local and not current_global_mode().is_enabled
        with pytest.raises(RuntimeError, match="Only local tensors have 'device'"):
            made[0].device  # noqa: B018
        with pytest.raises(RuntimeError, match="there is no placement"):
            current_global_mode().placement  # noqa: B018

    holon.run_ranks(2, check)


def test_the_region_is_the_ranks_own_and_ends_with_an_error():
    def check(rank):
        if rank == 0:
            with pytest.raises(KeyError), global_mode(True, P(), sbp.broadcast):
                raise KeyError
        assert holon.ones(2).is_local

    holon.run_ranks(2, check)


def test_wrong_regions():
    with pytest.raises(ValueError, match="needs a placement and an sbp"):
        global_mode(True, sbp=sbp.broadcast)
    with pytest.raises(ValueError, match="takes neither"):
        global_mode(False, holon.placement("cpu", [0]), sbp.broadcast)
    with (
        pytest.raises(ValueError, match="2 sbps for a placement of 1 axes"),
        global_mode(True, holon.placement("cpu", [0]), [sbp.broadcast] * 2),
    ):
        pass


def test_one_sbp_stands_for_all_axes_of_the_placement():
    grid = holon.placement("cpu", [[0]])
    with global_mode(True, grid, sbp.broadcast):
        assert holon.ones(2).sbp == (sbp.broadcast, sbp.broadcast)
