"""The mirrored view: one array for each device in and out, and the steps of the whole batch."""

import numpy as np
import oneflow as flow
import oneflow.typing as tp
import pytest
from legacy.small_net import batches, data, run, sgd


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def mirrored():
    config = flow.function_config()
    config.default_logical_view(flow.scope.mirrored_view())
    return config


def trained(n, rows, sizes_of, optimizer=sgd):
    """Losses by device of some steps, and the variables. sizes_of: of the parts that a batch is cut into."""
    flow.config.gpu_device_num(n)

    @flow.global_function(type="train", function_config=mirrored())
    def train(
        x: tp.ListNumpy.Placeholder((rows, 2, 4)), y: tp.ListNumpy.Placeholder((rows,), dtype=flow.int32)
    ) -> tp.ListNumpy:
        assert (
            x.shape == (rows, 2, 4) and flow.scope.mirrored_view_enabled() and not flow.scope.consistent_view_enabled()
        )
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, data(x, n))
        optimizer().minimize(loss)
        return loss

    losses = []
    for x, y in batches(6):
        cuts = np.cumsum(sizes_of)[:-1]
        losses.append(train(np.split(x, cuts), np.split(y, cuts)))
    return losses, {name: v.numpy() for name, v in flow.get_all_variables().items()}


@pytest.mark.parametrize("sizes", [(10,), (5, 5), (7, 3), (4, 3, 2, 1)], ids=str)
@pytest.mark.parametrize("scaled", [False, True])
def test_equals_the_whole_batch(sizes, scaled):
    def optimizer():
        options = {"loss_scale_policy": flow.optimizer.loss_scale.dynamic_loss_scale(2.0**8, 2)} if scaled else {}
        return sgd(grad_clipping=flow.optimizer.grad_clipping.by_global_norm(0.5), **options)

    want, _, variables = run(1, optimizer=optimizer)
    flow.clear_default_session()
    losses, found = trained(len(sizes), max(sizes), sizes, optimizer)
    for whole, parts in zip(want, losses):
        assert [len(p) for p in parts] == list(sizes)
        close(np.concatenate(parts), whole)
    assert set(found) == set(variables)
    for name in variables:
        close(found[name], variables[name])


def test_whole_arrays_are_cut_and_joined():
    flow.config.gpu_device_num(3)

    @flow.global_function(function_config=mirrored())
    def job(
        x: tp.Numpy.Placeholder((7, 2)), b: tp.Numpy.Placeholder((2,), batch_axis=None)
    ) -> tp.Tuple[tp.Numpy, tp.ListNumpy]:
        assert x.shape == (3, 2) and b.shape == (2,)
        y = x + b
        return y, y

    x, b = np.arange(14, dtype=np.float32).reshape(7, 2), np.array([10, 20], np.float32)
    whole, parts = job(x, b)
    close(whole, x + b)
    assert [len(p) for p in parts] == [3, 2, 2]
    close(np.concatenate(parts), x + b)


def test_lists_of_tensors():
    flow.config.gpu_device_num(2)

    @flow.global_function(function_config=mirrored())
    def job(x: tp.ListListNumpy.Placeholder((4, 2))) -> tp.ListListNumpy:
        return x * 2

    given = [[np.ones((1, 2), np.float32), np.full((4, 2), 2, np.float32)], [np.full((3, 2), 3, np.float32)]]
    found = job(given)
    assert [[a.shape for a in device] for device in found] == [[(1, 2), (4, 2)], [(3, 2)]]
    close(found[0][1], given[0][1] * 2)
    close(found[1][0], given[1][0] * 2)


@pytest.mark.parametrize("view", ["mirrored", "consistent"])
def test_devices_in_another_order(view):
    """Of a job on some of the devices, the first named has the first part."""
    flow.config.gpu_device_num(4)
    config = mirrored() if view == "mirrored" else flow.function_config()
    config.default_placement_scope(flow.scope.placement("gpu", ["0:3", "0:1"]))

    @flow.global_function(function_config=config)
    def job(x: tp.Numpy.Placeholder((5, 2))) -> tp.Tuple[tp.Numpy, tp.ListNumpy]:
        return x * 2, x * 3

    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    whole, parts = job(x)
    close(whole, x * 2)
    close(np.concatenate(parts), x * 3)
    assert [len(p) for p in parts] == ([3, 2] if view == "mirrored" else [5])


def test_devices_draw_different_numbers():
    flow.config.gpu_device_num(2)

    @flow.global_function(type="train", function_config=mirrored())
    def job(x: tp.ListNumpy.Placeholder((64,))) -> tp.ListNumpy:
        w = flow.get_variable("w", (1,), initializer=flow.ones_initializer())
        y = flow.nn.dropout(x * w, rate=0.5)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.0]), momentum=0).minimize(y)
        return y

    ones = [np.ones(64, np.float32)] * 2
    (a, b), (c, d) = job(ones), job(ones)
    assert (a != b).any() and (a != c).any() and (b != d).any()


def test_gradients_that_are_watched():
    flow.config.gpu_device_num(2)
    seen = {}

    @flow.global_function(type="train", function_config=mirrored())
    def job(x: tp.ListNumpy.Placeholder((2,))) -> tp.ListNumpy:
        w = flow.get_variable("w", (1,), initializer=flow.ones_initializer())
        y = x * w

        def of_w(g: tp.ListNumpy):
            seen["w"] = g

        def of_y(g: tp.ListNumpy):
            seen["y"] = g

        def value(v: tp.ListNumpy):
            seen["value"] = v

        flow.watch_diff(w, of_w)
        flow.watch_diff(y, of_y)
        flow.watch(y, value)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.5]), momentum=0).minimize(y)
        return y

    job([np.array([1, 2], np.float32), np.array([3], np.float32)])
    close(seen["w"][0], [6])
    close(seen["w"][1], [6])
    close(np.concatenate(seen["y"]), [1, 1, 1])
    close(np.concatenate(seen["value"]), [1, 2, 3])
    close(flow.get_all_variables()["w"].numpy(), [1 - 0.5 * 6 / 3])


def test_the_whole_body_in_a_scope():
    flow.config.gpu_device_num(2)

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 2))) -> tp.Numpy:
        with flow.scope.mirrored_view():
            return x * 2

    close(job(np.ones((4, 2), np.float32)), np.full((4, 2), 2))


def test_variables_of_both_views():
    """A mirrored train job and a consistent predict job."""
    flow.config.gpu_device_num(2)

    @flow.global_function(type="train", function_config=mirrored())
    def train(x: tp.ListNumpy.Placeholder((2,))) -> tp.ListNumpy:
        loss = x * flow.get_variable("w", (1,), initializer=flow.ones_initializer())
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(loss)
        return loss

    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        return x * flow.get_variable("w", (1,), initializer=flow.ones_initializer())

    train([np.ones(2, np.float32), np.full(2, 3, np.float32)])
    close(predict(np.ones(4, np.float32)), np.full(4, -1))


def bad(n, call, error, text):
    flow.config.gpu_device_num(n)

    @flow.global_function(function_config=mirrored())
    def job(x: tp.ListNumpy.Placeholder((4, 2))) -> tp.ListNumpy:
        return x

    with pytest.raises(error, match=text):
        call(job)
    good = np.ones((2, 2), np.float32)
    assert len(job([good] * n)) == n  # it is still usable


@pytest.mark.parametrize(
    "given, error, text",
    [
        (np.ones((4, 2), np.float32), AssertionError, "must be a list with one entry for each of 2 devices"),
        ([np.ones((4, 2), np.float32)], AssertionError, "has 1 entries; there are 2 devices"),
        ([np.ones((4, 2), np.float32), np.ones(4, np.float32)], AssertionError, r"x\[1\] must have 2 axes"),
        ([np.ones((4, 2), np.float32), np.ones((5, 2), np.float32)], AssertionError, r"\[5, 2\]: more elements"),
        ([np.ones((4, 2), np.float32), np.ones((4, 2))], TypeError, "must be oneflow.float32 .* got float64"),
        ([np.ones((4, 2), np.float32), 3], AssertionError, r"x\[1\] must be a numpy.ndarray"),
    ],
    ids=["array", "length", "rank", "size", "dtype", "number"],
)
def test_arguments_that_do_not_fit(given, error, text):
    bad(2, lambda job: job(given), error, text)


def test_variables_of_a_part_of_the_devices():
    flow.config.gpu_device_num(2)

    @flow.global_function(function_config=mirrored())
    def job(x: tp.ListNumpy.Placeholder((4,))) -> tp.ListNumpy:
        with flow.scope.placement("gpu", "0:0"):
            return x * flow.get_variable("w", (1,), initializer=flow.ones_initializer())

    with pytest.raises(ValueError, match="'w' is on .* a copy of every variable"):
        job([np.ones(4, np.float32)] * 2)
