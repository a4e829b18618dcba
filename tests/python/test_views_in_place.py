"""Writes into views while ops are recorded: the gradients are those of the same program without views."""

import numpy as np
import pytest

import holon as flow


def leaf(*shape):
    n = int(np.prod(shape))
    return flow.tensor(np.arange(1.0, n + 1).reshape(shape), dtype=flow.float64, requires_grad=True)


def scale_first_row(x):
    y = x * 1
    y[0].mul_(2)
    return y


def copy_into_a_column(x):
    y = x * 1
    y[:, 1].copy_(x[:, 0] * x[:, 2])
    return y


def assign_a_slice(x):
    y = x * 1
    y[1:3] = x[0:2] * 3
    return y


def assign_in_a_view(x):
    y = x * 1
    y.t()[1:, 0] = x[2, :3] * 5
    return y


def a_chain_of_views(x):
    y = x * 1
    y.transpose(0, 1)[1:3].reshape(2, 3)[0].mul_(x[:, 0]).add_(1)
    return y


def flat_view(x):
    y = x * 1
    y.view(-1)[2:7].exp_()
    return y


def steps_of_a_recurrence(x):
    y = x * 1
    for k in range(1, 3):
        y[k].add_(y[k - 1] * 2)
    return y


def view_read_after_the_base_changed(x):
    y = x * 1
    row = y[1]
    y.mul_(x)
    return row * 3


def view_read_after_another_view_changed(x):
    y = x * 1
    row, column = y[1], y[:, 2]
    column.mul_(4)
    return row * row


def base_without_gradient(x):
    y = flow.zeros(3, 4, dtype=flow.float64)
    y[0].copy_(x[0] * 2)
    y[1:, 1:3] = x[1:, :2]
    return y * x


def overwritten_by_numbers(x):
    y = x * 1
    y[0].fill_(7)
    y[1].zero_()
    y[2, :2].copy_(flow.ones(2, dtype=flow.float64))
    return y * x


def the_whole_overwritten(x):
    y = x * x
    y.copy_(flow.ones(3, 4, dtype=flow.float64))
    return y * x


def masked(x):
    y = x * 1
    y[1:].masked_fill_(x[1:].detach() > 6.5, 0.5)
    y.diagonal().mul_(3)
    return y


def twice_through_pieces(x):
    y = x * 1
    for part in y.split(2, 1):
        part.mul_(part.detach() + 1)
    first, *_ = y.unbind(0)
    first.sub_(x[1])
    return y


PROGRAMS = [
    scale_first_row,
    copy_into_a_column,
    assign_a_slice,
    assign_in_a_view,
    a_chain_of_views,
    flat_view,
    steps_of_a_recurrence,
    view_read_after_the_base_changed,
    view_read_after_another_view_changed,
    base_without_gradient,
    overwritten_by_numbers,
    the_whole_overwritten,
    masked,
    twice_through_pieces,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_gradients(program):
    x = leaf(3, 4)
    y = program(x)
    weights = flow.tensor(np.cos(np.arange(y.numel())).reshape(y.shape), dtype=flow.float64)
    (y * weights).sum().backward()
    numeric, h = np.zeros(12), 1e-6
    start = x.detach().numpy().copy()
    for k in range(12):
        values = []
        for sign in (1, -1):
            moved = start.copy()
            moved.flat[k] += sign * h
            with flow.no_grad():
                values.append((program(flow.tensor(moved, dtype=flow.float64)) * weights).sum().item())
        numeric[k] = (values[0] - values[1]) / (2 * h)
    # What depends on detach() is constant for backward, but not for the differences.
    if program is twice_through_pieces:
        plain = leaf(3, 4)
        z = plain * (plain.detach() + 1)
        z = flow.cat([(z[0] - plain[1]).unsqueeze(0), z[1:]])
        (z * weights).sum().backward()
        numeric = plain.grad.numpy().ravel()
    np.testing.assert_allclose(x.grad.numpy().ravel(), numeric, rtol=1e-6, atol=1e-6)


def test_the_base_and_the_view_know_of_the_write():
    x = leaf(2, 3)
    y = flow.zeros(2, 3, dtype=flow.float64)
    row = y[0]
    assert not y.requires_grad and not row.requires_grad
    y[1].copy_(x[0])
    assert y.requires_grad and row.requires_grad and not row.is_leaf
    row.sum().backward()
    assert x.grad.numpy().tolist() == [[0, 0, 0], [0, 0, 0]]
    y.sum().backward()
    assert x.grad.numpy().tolist() == [[1, 1, 1], [0, 0, 0]]


def test_second_derivatives_through_a_write():
    x = leaf(4)
    y = x * x
    y[1:3].mul_(x[:2])
    (dx,) = flow.autograd.grad((y * y).sum(), x, create_graph=True)
    (ddx,) = flow.autograd.grad(dx.sum(), x)

    def first(v):
        z = np.concatenate([v[:1] ** 2, v[1:3] ** 2 * v[:2], v[3:] ** 2])
        jacobian = np.diag(2 * v)
        jacobian[1, 1], jacobian[1, 0] = 2 * v[1] * v[0], v[1] ** 2
        jacobian[2, 2], jacobian[2, 1] = 2 * v[2] * v[1], v[2] ** 2
        return 2 * z @ jacobian

    v, h = x.detach().numpy(), 1e-5
    np.testing.assert_allclose(dx.detach().numpy(), first(v))
    want = [(first(v + h * e).sum() - first(v - h * e).sum()) / (2 * h) for e in np.eye(4)]
    np.testing.assert_allclose(ddx.numpy(), want, rtol=1e-6)


def test_infinite_gradients_of_other_elements_stay():
    x = leaf(3)
    y = x * 1
    y[0].mul_(0)
    (y * flow.tensor([float("inf"), 1, float("inf")], dtype=flow.float64)).sum().backward()
    assert x.grad.numpy()[1:].tolist() == [1, np.inf]


def test_what_is_refused():
    x = leaf(2, 3)
    with pytest.raises(RuntimeError, match=r"mul_: a view \[3\] of a leaf tensor that requires grad"):
        x[0].mul_(2)
    with pytest.raises(RuntimeError, match="leaf tensor"):
        x.mul_(2)
    with pytest.raises(RuntimeError, match="leaf"):
        x[0] = 1
    with pytest.raises(RuntimeError, match="leaf"):
        x.t()[0] = flow.ones(2, dtype=flow.float64)
    with flow.no_grad():
        x[0].mul_(2)
        x[1] = 5
    assert x.detach().numpy().tolist() == [[2, 4, 6], [5, 5, 5]]
    with pytest.raises(RuntimeError, match=r"add_: several elements of the tensor \[2, 3\].*expand"):
        (leaf(1, 3) * 1).expand(2, 3).add_(1)
    # A value that backward needs, overwritten through a view, and one read through a view.
    y = x * 1
    z = y * y
    y[0].add_(1)
    with pytest.raises(RuntimeError, match="changed in place"):
        z.sum().backward()
    y = x * 1
    z = y[1].exp()
    z[0].mul_(2)
    with pytest.raises(RuntimeError, match="changed in place"):
        z.sum().backward()


def test_detached_views_are_no_views_for_the_tape():
    x = leaf(2, 3)
    y = x * 1
    y.detach()[0].mul_(5)
    assert y.detach().numpy()[0].tolist() == [5, 10, 15]
    y.sum().backward()
    assert x.grad.numpy().tolist() == [[1, 1, 1], [1, 1, 1]]


def test_on_several_ranks():
    def run(rank):
        placement = flow.placement("cpu", [0, 1])
        results = []
        for sbp in (flow.sbp.split(0), flow.sbp.split(1), flow.sbp.broadcast):
            x = flow.tensor(np.arange(1.0, 13).reshape(4, 3), dtype=flow.float64)
            x = x.to_global(placement, flow.sbp.broadcast).to_global(placement, sbp).detach().requires_grad_()
            y = x * 1
            y.transpose(0, 1).mul_(2)
            y[:, :].mul_(x)
            if sbp == flow.sbp.split(0):
                y[:, 1].add_(x[:, 0] * 4)  # along the axis that is whole
            else:
                y[1].add_(x[0] * 4)
            y.sum().backward()
            results.append(
                x.grad.numpy().tolist()
                if x.grad.is_local
                else x.grad.to_global(placement, flow.sbp.broadcast).to_local().numpy().tolist()
            )
        return results

    base = 4 * np.arange(1.0, 13).reshape(4, 3)
    columns, rows = base.copy(), base.copy()
    columns[:, 0] += 4
    rows[0] += 4
    for results in flow.run_ranks(2, run):
        assert results == [columns.tolist(), rows.tolist(), rows.tolist()]


def test_operators_on_parts_of_a_split_axis():
    """Such a part is a copy: no write into it is lost, but x[0] += 1 writes into x."""

    def run(rank):
        placement = flow.placement("cpu", [0, 1])
        x = flow.tensor(np.arange(1.0, 9).reshape(4, 2), dtype=flow.float64)
        x = x.to_global(placement, flow.sbp.broadcast).to_global(sbp=flow.sbp.split(0)).detach().requires_grad_()
        with flow.no_grad():
            y = x.detach().clone()
            y[3] += 1
            y[0:2] *= y[2:4]
            with pytest.raises(RuntimeError, match=r"add_: the tensor \[2\] is a copy, not a view"):
                y[0].add_(1)
        z = x * 1
        z[3] += x[0] * 2
        z[0] -= 1
        z.sum().backward()
        return y.numpy().tolist(), z.detach().numpy().tolist(), x.grad.numpy().tolist()

    for y, z, dx in flow.run_ranks(2, run):
        assert y == [[1 * 5, 2 * 6], [3 * 8, 4 * 9], [5, 6], [8, 9]]
        assert z == [[0, 1], [3, 4], [5, 6], [7 + 2, 8 + 4]]
        assert dx == [[3, 3], [1, 1], [1, 1], [1, 1]]
