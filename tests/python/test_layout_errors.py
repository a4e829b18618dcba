"""What is wrong with a placement, an sbp and a device is one kind of error,
which catches whatever others raise for it."""

import pickle

import pytest

import holon as flow

P = flow.placement("cpu", [0])
B = flow.sbp.broadcast

CASES = {
    "placement without sbp": (
        lambda: flow.ones(2, placement=P),
        "ones: placement and sbp must be given together; only placement was given",
    ),
    "sbp without placement": (
        lambda: flow.ones(2, sbp=B),
        "ones: placement and sbp must be given together; only sbp was given",
    ),
    "tensor with one of them": (
        lambda: flow.tensor([1.0], placement=P),
        "tensor: placement and sbp must be given together",
    ),
    "placement and device": (
        lambda: flow.ones(2, placement=P, sbp=B, device="cpu"),
        "ones: both placement and device were given",
    ),
    "tensor with both": (
        lambda: flow.tensor([1.0], placement=P, sbp=B, device="cpu"),
        "tensor: both placement and device were given",
    ),
    "to with both": (
        lambda: flow.ones(2, placement=P, sbp=B).to("cpu", sbp=B),
        "to: both device and placement or sbp were given",
    ),
    "sbp as text": (
        lambda: flow.ones(2, placement=P, sbp="S(0)"),
        "ones: argument sbp must be an sbp.*got str 'S\\(0\\)'",
    ),
    "to_global with text": (lambda: flow.ones(2).to_global(P, "B"), "to_global: argument sbp must be an sbp"),
    "too many sbps": (
        lambda: flow.ones(2, placement=P, sbp=[B, B]),
        "ones: 2 sbp for placement.*whose hierarchy has 1 axis",
    ),
    "to_global without sbp": (
        lambda: flow.ones(2).to_global(P),
        "to_global: a local tensor needs both placement and sbp; sbp is missing",
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("caught", [flow.LayoutError, AssertionError, ValueError, RuntimeError, TypeError])
def test_layout_errors(name, caught):
    call, message = CASES[name]
    with pytest.raises(caught, match=message):
        call()


def test_other_errors_are_no_layout_errors():
    with pytest.raises(TypeError) as e:
        flow.ones(2, placement=3, sbp=B)
    assert not isinstance(e.value, AssertionError)


def test_a_layout_error_is_pickled():
    e = pickle.loads(pickle.dumps(flow.LayoutError("why")))
    assert type(e) is flow.LayoutError and str(e) == "why"
