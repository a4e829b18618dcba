"""Job functions on several devices compute what they compute on one, and that is what eager steps compute."""

import re

import numpy as np
import oneflow as flow
import oneflow.typing as tp
import pytest
from legacy.small_net import CLASSES, WAYS, batches, data, eager, model, run, sgd, train_and_predict


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.fixture(scope="module")
def one_device():
    return run(1)


def test_one_device_equals_eager(one_device):
    losses, last, variables = one_device
    train, predict = train_and_predict(1)
    start = {k: v.numpy() for k, v in flow.get_all_variables().items() if k.count("-") == 1}
    want, weights = eager(start)
    close(losses, want)
    for name, w in weights.items():
        close(variables[name], w)
    assert variables["System-Train-TrainStep-train"] == [6]
    assert {"hidden-weight-momentum", "output-bias-momentum"} < set(variables)


@pytest.mark.parametrize("way", WAYS, ids=lambda w: w.__name__)
@pytest.mark.parametrize("n", [1, 2, 4])
def test_devices_equal_one(one_device, n, way):
    losses, last, variables = run(n, way)
    close(losses, one_device[0])
    close(last, one_device[1])
    assert set(variables) == set(one_device[2])
    for name, value in variables.items():
        close(value, one_device[2][name])


def test_batch_that_devices_do_not_divide():
    """10 rows on 4 devices are 3, 3, 2, 2: the tests above; 5 on 4 too."""
    want, got = run(1, rows=5, steps=3), run(4, rows=5, steps=3)
    close(got[0], want[0])
    close(got[1], want[1])


def test_job_on_some_of_the_devices():
    config = flow.function_config()
    config.default_placement_scope(flow.scope.placement("gpu", "0:1-2"))
    want, got = run(1, steps=3), run(4, steps=3, config=config)
    close(got[0], want[0])
    close(got[1], want[1])


@pytest.mark.parametrize("n", [1, 2])
def test_loss_in_parts_is_averaged_over_all(n):
    """unpack without pack: the same steps as with the whole batch."""

    def of_parts():
        flow.config.gpu_device_num(n)

        @flow.global_function(type="train")
        def train(x: tp.Numpy.Placeholder((10, 2, 4)), y: tp.Numpy.Placeholder((10,), dtype=flow.int32)) -> tp.Numpy:
            x, y = flow.unpack(x, 5), flow.unpack(y, 5)
            w = flow.repeat(flow.get_variable("w", (CLASSES, 8), initializer=flow.truncated_normal(0.3)), 5)
            logits = flow.matmul(flow.reshape(x, [2, 8]), w, transpose_b=True)
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            assert loss.shape == (2,)
            sgd().minimize(loss)
            return loss

        return train

    def whole():
        flow.config.gpu_device_num(n)

        @flow.global_function(type="train")
        def train(x: tp.Numpy.Placeholder((10, 2, 4)), y: tp.Numpy.Placeholder((10,), dtype=flow.int32)) -> tp.Numpy:
            w = flow.get_variable("w", (CLASSES, 8), initializer=flow.truncated_normal(0.3))
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(
                y, flow.matmul(flow.reshape(x, [10, 8]), w, transpose_b=True)
            )
            sgd().minimize(loss)
            return loss

        return train

    found = []
    for make in (of_parts, whole):
        flow.clear_default_session()
        train = make()
        found.append(np.stack([train(x, y) for x, y in batches(4)]))
    close(*found)


def test_streams():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((6, 2))) -> tp.Tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
        parts = flow.unpack(x, 3)
        assert parts.shape == (2, 2)
        return flow.pack(parts * 2, 3), flow.acc(parts, 3), flow.pack(flow.acc(flow.repeat(x, 4), 2), 2)

    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    doubled, summed, repeated = job(x)
    close(doubled, 2 * x)
    close(summed, x.reshape(3, 2, 2).sum(0))
    close(repeated, np.concatenate([2 * x, 2 * x]))


@pytest.mark.parametrize("n", [1, 3])
def test_distribute_lists(n):
    flow.config.gpu_device_num(n)

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((7, 2))) -> tp.Tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
        copies = flow.advanced.distribute_clone(x)
        assert len(copies) == n
        return (
            flow.advanced.distribute_add(copies),
            flow.advanced.distribute_concat(flow.advanced.distribute_split(x)),
            flow.advanced.distribute_map(x, lambda p: p * p),
        )

    x = np.arange(14, dtype=np.float32).reshape(7, 2)
    summed, joined, squared = job(x)
    close(summed, n * x)
    close(joined, x)
    close(squared, x * x)


def test_inputs_variables_and_constants_come_back():
    flow.config.gpu_device_num(2)

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((4, 3))) -> tp.Tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
        w = flow.get_variable("w", (3,), initializer=flow.ones_initializer())
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(x * w)
        return x, w, flow.constant(5.0, shape=(2,))

    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    for step in range(3):
        same, w, five = job(x)
        close(same, x)
        close(w, 1 - step * x.mean(0) / 3)  # the value before the update
        close(five, [5, 5])
    close(flow.get_all_variables()["w"].numpy(), 1 - 3 * x.mean(0) / 3)


@pytest.mark.parametrize("mirrored", [False, True])
def test_a_view_of_a_variable_is_from_before_the_update(mirrored):
    config = flow.function_config()
    if mirrored:
        config.default_logical_view(flow.scope.mirrored_view())

    @flow.global_function(type="train", function_config=config)
    def job(x: tp.Numpy.Placeholder((3,))) -> tp.Numpy:
        w = flow.get_variable("w", (3,), initializer=flow.ones_initializer())
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [3.0]), momentum=0).minimize(x * w)
        return flow.reshape(w, (3, 1))

    for step in range(3):
        close(job(np.ones(3, np.float32)), np.full((3, 1), 1.0 - step))


def test_several_losses_and_regularizers():
    """Losses are added up and divided by one's count; the regularizer comes after that, and clipping last."""
    flow.config.gpu_device_num(2)

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        w = flow.get_variable(
            "w", (3,), initializer=flow.constant_initializer(2.0), regularizer=flow.regularizers.l2(0.5)
        )
        a, b = x * w, x * x * w
        clipping = flow.optimizer.grad_clipping.by_global_norm(1.0)
        flow.optimizer.SGD(
            flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0, grad_clipping=clipping
        ).minimize([a, b])
        return a

    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    job(x)
    g = (x.sum(0) + (x * x).sum(0)) / 12 + 0.5 * 2
    close(flow.get_all_variables()["w"].numpy(), 2 - g * min(1, 1 / np.linalg.norm(g)))


@pytest.mark.parametrize("policy", ["factor", "static", "dynamic"])
def test_loss_scale_changes_nothing(policy):
    scale = flow.optimizer.loss_scale
    options = {
        "factor": {"loss_scale_factor": 64.0},
        "static": {"loss_scale_policy": scale.static_loss_scale(64.0)},
        "dynamic": {"loss_scale_policy": scale.dynamic_loss_scale(2.0**10, 2)},
    }[policy]
    want, got = run(1, steps=4), run(2, steps=4, optimizer=lambda: sgd(**options))
    close(got[0], want[0])
    for name in want[2]:
        close(got[2][name], want[2][name])


def test_dynamic_loss_scale_skips_overflow():
    flow.config.gpu_device_num(2)

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        w = flow.get_variable("w", (4,), initializer=flow.ones_initializer())
        flow.optimizer.SGD(
            flow.optimizer.PiecewiseConstantScheduler([], [1.0]),
            momentum=0.9,
            loss_scale_policy=flow.optimizer.loss_scale.dynamic_loss_scale(2.0**60, 2),
        ).minimize(x * w)
        return x

    job(np.full(4, 1e30, np.float32))  # overflows float32, and again, until the scale is small enough
    variables = flow.get_all_variables()
    close(variables["w"].numpy(), np.ones(4))
    close(variables["w-momentum"].numpy(), np.zeros(4))


def test_older_optimizer_of_the_config():
    config = flow.function_config()
    config.train.primary_lr(0.25)
    config.train.model_update_conf(dict(naive_conf={}))

    with pytest.warns(DeprecationWarning):

        @flow.global_function(config)
        def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
            w = flow.get_variable("w", (4,), initializer=flow.zeros_initializer())
            loss = x * w
            flow.losses.add_loss(loss)
            return loss

    job(np.ones(4, np.float32))
    close(flow.get_all_variables()["w"].numpy(), np.full(4, -0.25 / 4))


def test_dropout_draws_alike_whatever_the_devices():
    def masks(n):
        flow.clear_default_session()
        flow.config.gpu_device_num(n)

        @flow.global_function(type="train")
        def job(x: tp.Numpy.Placeholder((64, 4))) -> tp.Numpy:
            w = flow.get_variable("w", (4,), initializer=flow.ones_initializer())
            y = flow.nn.dropout(x * w, rate=0.5)
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.0]), momentum=0).minimize(y)
            return y

        return [job(np.ones((64, 4), np.float32)) for _ in range(2)]

    one, four = masks(1), masks(4)
    close(one[0], four[0])
    close(one[1], four[1])
    assert (one[0] != one[1]).any() and 60 < (one[0] == 0).sum() < 196


def test_namespaces_and_untrained_variables():
    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        with flow.scope.namespace("a"), flow.scope.namespace("b"):
            w = flow.get_variable("w", (4,), initializer=flow.ones_initializer())
        still = flow.get_variable("w", (4,), initializer=flow.ones_initializer(), trainable=False)
        assert flow.get_variable("w", (4,)) is still
        loss = x * w * still
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [4.0]), momentum=0).minimize(loss)
        return loss

    job(np.ones(4, np.float32))
    variables = flow.get_all_variables()
    close(variables["a-b-w"].numpy(), np.zeros(4))
    close(variables["w"].numpy(), np.ones(4))


def test_assign_keeps_its_value():
    flow.config.gpu_device_num(2)

    @flow.global_function()
    def count() -> tp.Numpy:
        n = flow.get_variable("n", (3,), initializer=flow.zeros_initializer(), trainable=False)
        flow.assign(n, n + flow.constant(1.0, shape=(3,)))
        return n

    found = [count().sum() for _ in range(3)]
    close(found, [0, 3, 6])
    close(flow.get_all_variables()["n"].numpy(), [3, 3, 3])


def test_new_session_on_other_devices():
    first = run(2, model)[0]
    second = run(4, model)[0]
    close(first, second)
    flow.clear_default_session()
    train, _ = train_and_predict(1, data)
    assert "train" in str(train.__holon_job__.name)


@pytest.mark.parametrize("axis", [None, 0, 1, -1], ids=str)
@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "uint8", "int32", "int64"])
def test_inputs_of_each_dtype_split_along_each_axis(axis, dtype):
    flow.config.gpu_device_num(3)

    @flow.global_function()
    def job(
        x: tp.Numpy.Placeholder((4, 5), dtype=getattr(flow, dtype), batch_axis=axis),
    ) -> tp.Tuple[tp.Numpy, tp.Numpy]:
        assert x.dtype == getattr(flow, dtype)
        return x, x + x

    for start in (0, 3):
        x = (np.arange(20).reshape(5, 4).T + start).astype(dtype)  # not contiguous
        same, twice = job(x)
        np.testing.assert_array_equal(same, x)
        np.testing.assert_array_equal(twice, 2 * x)
        assert same.dtype == dtype


def test_parts_are_a_pipeline():
    """Each device works through the parts one after the other and hands each on:
    the second has its first part before the first has its last."""
    from legacy.small_net import parts
    from oneflow.single_client import session

    train, _ = train_and_predict(2, parts)
    train(*batches(1)[0])
    first, second = session.default().run(
        lambda rank: rank._runners["train"].graph.plan().split("cross_entropy")[0].splitlines()
    )
    handed = re.compile(r"box.* on placement\(type=.cpu., ranks=\[0\]\) -> .* on placement\(type=.cpu., ranks=\[1\]\)")

    def order(lines):
        return ["work" if "linear(" in line else "hand" for line in lines if "linear(" in line or handed.search(line)]

    assert order(first) == ["work", "hand"] * 5
    assert order(second) == ["hand", "work"] * 5
    given = [i for i, line in enumerate(second) if "box" in line and not handed.search(line)]
    taken = [i for i, line in enumerate(second) if handed.search(line)]
    assert max(i for i in given if i < max(taken)) < min(
        taken
    )  # the input is given away before: the first device waits for nobody


@pytest.mark.parametrize("n", [1, 3])
def test_casts_change_no_value(n):
    """Nor do they change gradients, however a blob and its gradient are laid out."""
    flow.config.gpu_device_num(n)
    split, broadcast, auto = flow.distribute.split, flow.distribute.broadcast(), flow.distribute.auto()

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((6, 4))) -> tp.Tuple[tp.Numpy, tp.Numpy]:
        w = flow.get_variable("w", (4, 3), initializer=flow.ones_initializer(), distribute=split(0))
        assert w.split_axis == 0 and x.with_distribute(broadcast).split_axis is None
        y = flow.parallel_cast(x, distribute=split(1), gradient_distribute=split(0))
        y = flow.matmul(y, w).with_broadcast_distribute().with_gradient_distribute(split(1)).with_distribute(auto)
        loss = y * y
        sgd().minimize(loss)
        return y, loss

    x = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    y, loss = job(x)
    close(y, x @ np.ones((4, 3)))
    close(loss, y * y)
    close(flow.get_all_variables()["w"].numpy(), 1 - 0.5 * x.T @ (2 * y) / 18)


def test_two_train_jobs_share_variables_and_momentum():
    """As two kinds of steps that alternate."""

    def make(name, n):
        def job(x):
            loss = x * flow.get_variable("w", (2,), initializer=flow.ones_initializer())
            sgd().minimize(loss)
            return loss

        job.__name__, job.__annotations__ = name, {"x": tp.Numpy.Placeholder((n, 2)), "return": tp.Numpy}
        return flow.global_function(type="train")(job)

    flow.config.gpu_device_num(2)
    large, small = make("large", 6), make("small", 3)
    w, m = np.ones(2), np.zeros(2)
    rng = np.random.default_rng(0)
    for i in range(4):
        x = rng.normal(size=(3 if i % 2 else 6, 2)).astype(np.float32)
        (small if i % 2 else large)(x)
        m = 0.9 * m - 0.5 * x.sum(0) / x.size
        w = w + m
    close(flow.get_all_variables()["w"].numpy(), w)
    close(flow.get_all_variables()["w-momentum"].numpy(), m)
