"""Layers in job functions on one device and on two:
their variables, results, and what a step of training makes of them."""

import numpy as np
import oneflow as flow
import oneflow.typing as tp
import pytest
from oneflow.single_client import initializers

rng = np.random.default_rng(3)
X = rng.normal(size=(6, 5)).astype(np.float32)
IMAGE = rng.normal(size=(4, 3, 5, 6)).astype(np.float32)


class Given(initializers.Initializer):
    """These values."""

    def __init__(self, values):
        self.values = np.asarray(values)

    def fill(self, tensor, name, seed=None):
        with flow.no_grad():
            where = {"placement": tensor.placement, "sbp": tensor.sbp} if tensor.is_global else {}
            return tensor.copy_(flow.tensor(self.values, dtype=tensor.dtype, **where))


@pytest.fixture(params=[1, 2, 3])
def devices(request):
    flow.clear_default_session()
    flow.config.gpu_device_num(request.param)
    yield request.param
    flow.clear_default_session()


def variables():
    return {name: v.numpy() for name, v in flow.get_all_variables().items() if not name.startswith("System-")}


def predict(body, x):
    """What a predict job of the layer gives."""

    @flow.global_function()
    def predict_job(x: tp.Numpy.Placeholder(x.shape)) -> tp.Numpy:
        return body(x)

    return predict_job(x)


def train(body, x, rate=1.0, also=None):
    """(loss, variables after one step of gradient descent on the sum of the squares of what the layer gives)."""
    if also is not None:

        @flow.global_function()
        def predict_job(x: tp.Numpy.Placeholder(x.shape)) -> tp.Numpy:
            return body(x)

    @flow.global_function(type="train")
    def train_job(x: tp.Numpy.Placeholder(x.shape)) -> tp.Numpy:
        loss = flow.math.reduce_sum(flow.math.square(body(x)))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [rate]), momentum=0).minimize(loss)
        return loss

    loss = train_job(x)
    return (loss, variables()) if also is None else (loss, variables(), predict_job(also))


def close(found, expected, tolerance=2e-5):
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


# Dense

W, BIAS = rng.normal(size=(4, 5)), rng.normal(size=4)


@pytest.mark.parametrize("distribute", ["broadcast", "split", "auto"])
def test_dense(devices, distribute):
    way = flow.distribute.split(0) if distribute == "split" else getattr(flow.distribute, distribute)()
    loss, after = train(
        lambda x: flow.layers.dense(
            x, 4, kernel_initializer=Given(W), bias_initializer=Given(BIAS), name="fc", model_distribute=way
        ),
        X,
        0.01,
    )
    y = X @ W.T + BIAS
    close(loss, [(y * y).sum()])
    assert set(after) == {"fc-weight", "fc-bias"}
    close(after["fc-weight"], W - 0.01 * 2 * y.T @ X)
    close(after["fc-bias"], BIAS - 0.01 * 2 * y.sum(0))


def test_dense_of_more_axes_with_activation_and_without_bias(devices):
    seen = []

    def activation(blob, name):
        seen.append(name)
        return flow.nn.relu(blob, name=name)

    x = X.reshape(3, 2, 5)
    y = predict(lambda x: flow.layers.dense(x, 4, activation, False, Given(W)), x)
    close(y, np.maximum(x @ W.T, 0))
    assert seen == ["activation"] and set(variables()) == {"Dense-weight"}


def test_defaults_of_dense(devices):
    close(predict(lambda x: flow.layers.dense(x, 3), X), np.zeros((6, 3)))


def test_regularizers_and_trainable(devices):
    def body(x):
        y = flow.layers.dense(
            x, 4, kernel_initializer=Given(W), kernel_regularizer=flow.regularizers.l1_l2(0.1, 0.2), name="a"
        )
        return flow.layers.dense(y, 2, kernel_initializer=flow.ones_initializer(), trainable=False, name="b")

    _, after = train(body, X, 0.01)
    y = (X @ W.T).sum(1)
    close(
        after["a-weight"], W - 0.01 * (4 * np.tile((y[:, None] * X).sum(0), (4, 1)) + 0.1 * np.sign(W) + 0.2 * W), 1e-4
    )
    assert (after["b-weight"] == 1).all() and (after["b-bias"] == 0).all()


def test_namespaces(devices):
    def body(x):
        with flow.scope.namespace("net"):
            return flow.layers.dense(x, 2, name="fc")

    predict(body, X)
    assert set(variables()) == {"net-fc-weight", "net-fc-bias"}


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_classes_divided_among_devices(devices, dtype):
    """The head's columns and the classes of the loss lie on different devices; ten of them do not divide by three."""
    head, labels = rng.normal(size=(10, 5)).astype(np.float32), np.array([0, 9, 3, 4, 7, 2], dtype)

    @flow.global_function(type="train")
    def job(
        x: tp.Numpy.Placeholder(X.shape), labels: tp.Numpy.Placeholder((6,), getattr(flow, labels.dtype.name))
    ) -> tp.Numpy:
        logits = flow.layers.dense(
            x, 10, kernel_initializer=Given(head), model_distribute=flow.distribute.split(0), name="head"
        )
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(loss)
        return loss

    loss = job(X, labels)
    e = np.exp(X @ head.T)
    p = e / e.sum(1, keepdims=True)
    close(loss, -np.log(p[np.arange(6), labels]))
    close(variables()["head-weight"], head - (p - np.eye(10)[labels]).T @ X / 6)
    close(variables()["head-bias"], -(p - np.eye(10)[labels]).mean(0))


# Convolutions

K, KB = rng.normal(size=(4, 3, 3, 2)).astype(np.float32), rng.normal(size=4)


def convolved(x, w):
    """VALID, stride 1."""
    views = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], tuple(range(2, x.ndim)))
    axes = list(range(w.ndim - 1))
    return np.moveaxis(np.tensordot(views, w, ([1, *[a + w.ndim for a in axes[:-1]]], [1, *range(2, w.ndim)])), -1, 1)


def test_conv2d(devices):
    def body(x):
        return flow.layers.conv2d(x, 4, [3, 2], kernel_initializer=Given(K), bias_initializer=Given(KB), name="c")

    loss, after = train(body, IMAGE, 0.001)
    y = convolved(IMAGE, K) + KB[:, None, None]
    close(loss, [(y * y).sum()])
    close(after["c-bias"], KB - 0.001 * 2 * y.sum((0, 2, 3)), 1e-4)
    gradient = np.stack([convolved(IMAGE.swapaxes(0, 1), 2 * y[:, o : o + 1].swapaxes(0, 1))[:, 0] for o in range(4)])
    close(after["c-weight"], K - 0.001 * gradient, 1e-4)


def test_conv_options(devices):
    last = np.moveaxis(IMAGE, 1, -1).copy()

    def body(x):
        y = flow.layers.conv2d(
            x,
            4,
            (3, 2),
            padding="VALID",
            data_format="NHWC",
            use_bias=False,
            activation=flow.nn.relu,
            kernel_initializer=Given(np.moveaxis(K, 1, -1)),
            weight_name="kernel",
        )
        return flow.layers.conv2d(y, 2, 1, data_format="NHWC", weight_name="w2", bias_name="b2", name="unused")

    predict(body, last)
    found = variables()
    assert {n: v.shape for n, v in found.items()} == {"kernel": (4, 3, 2, 3), "w2": (2, 1, 1, 4), "b2": (2,)}
    limit = np.sqrt(6 / (4 + 2))
    assert 0 < np.abs(found["w2"]).max() < limit


def test_conv1d_and_conv3d(devices):
    x, w = rng.normal(size=(3, 3, 7)).astype(np.float32), rng.normal(size=(2, 3, 4)).astype(np.float32)
    deep, wd = rng.normal(size=(4, 2, 4, 3, 5)).astype(np.float32), rng.normal(size=(4, 2, 2, 2, 2)).astype(np.float32)

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(x.shape), deep: tp.Numpy.Placeholder(deep.shape)) -> tp.Tuple[tp.Numpy, tp.Numpy]:
        return (flow.layers.conv1d(x, 2, 4, kernel_initializer=Given(w)),
                flow.layers.conv3d(deep, 4, 2, kernel_initializer=Given(wd), groups=1, strides=1))  # fmt: skip

    y, z = job(x, deep)
    close(y, convolved(x, w))
    close(z, convolved(deep, wd))
    assert set(variables()) == {"Conv1d-weight", "Conv1d-bias", "Conv3d-weight", "Conv3d-bias"}


# Normalisation

GAMMA, BETA = np.array([0.5, 1.5, 2.0]), np.array([0.1, -0.2, 0.3])


@pytest.mark.parametrize("axis, training", [(1, True), (-1, True), (1, False)])
def test_batch_normalization(devices, axis, training):
    x = IMAGE if axis == 1 else np.moveaxis(IMAGE, 1, -1).copy()

    def body(x):
        y = flow.layers.batch_normalization(x, axis=axis, momentum=0.9, epsilon=0.01, gamma_initializer=Given(GAMMA),
                                            beta_initializer=Given(BETA), training=training, name="bn")  # fmt: skip
        return flow.math.multiply(y, flow.math.sigmoid(x))  # so that the sum of the squares depends on x

    loss, after, predicted = train(body, x, 0.001, also=x)
    axes = (0, 2, 3) if axis == 1 else (0, 1, 2)

    def along(v):
        return v[:, None, None] if axis == 1 else v

    mean, var = (x.mean(axes), x.var(axes)) if training else (np.zeros(3), np.ones(3))
    normed = (x - along(mean)) / np.sqrt(along(var) + 0.01)
    gate = 1 / (1 + np.exp(-x))
    y = (normed * along(GAMMA) + along(BETA)) * gate
    close(loss, [(y * y).sum()], 1e-4)
    gamma, beta = GAMMA - 0.001 * (2 * y * gate * normed).sum(axes), BETA - 0.001 * (2 * y * gate).sum(axes)
    close(after["bn-gamma"], gamma, 1e-4)
    close(after["bn-beta"], beta, 1e-4)
    moving = (0.1 * mean, 0.9 + 0.1 * var) if training else (mean, var)
    close(after["bn-moving_mean"], moving[0])
    close(after["bn-moving_variance"], moving[1])
    expected = (x - along(moving[0])) / np.sqrt(along(moving[1]) + 0.01) * along(gamma) + along(beta)
    close(predicted, expected * gate, 1e-4)
    assert len(after) == 4


def test_batch_normalization_options(devices):
    def body(x):
        y = flow.layers.batch_normalization(
            x,
            center=False,
            scale=False,
            trainable=False,
            epsilon=0.0,
            moving_mean_initializer=Given([1, 2, 3, 4, 5]),
            moving_variance_initializer=Given([4] * 5),
        )
        return flow.layers.dense(y, 1, kernel_initializer=flow.ones_initializer(), name="fc")

    loss, after = train(body, X)
    close(loss, [(((X - np.arange(1, 6)) / 2).sum(1) ** 2).sum()], 1e-4)
    assert set(after) == {"BatchNorm-moving_mean", "BatchNorm-moving_variance", "fc-weight", "fc-bias"}
    close(after["BatchNorm-moving_mean"], np.arange(1, 6))


def test_batch_normalization_with_relu(devices):
    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder(X.shape), more: tp.Numpy.Placeholder(X.shape)) -> tp.Tuple[tp.Numpy, tp.Numpy]:
        a = flow.layers.batch_normalization_relu(x, name="a")
        b = flow.layers.batch_normalization_add_relu(x, more, name="b")
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize([a, b])
        return a, b

    a, b = job(X, X[::-1].copy())
    normed = (X - X.mean(0)) / np.sqrt(X.var(0) + 0.001)
    close(a, np.maximum(normed, 0))
    close(b, np.maximum(normed + X[::-1], 0))


def test_layer_norm(devices):
    x = X.reshape(3, 2, 5)

    def body(x):
        return flow.layers.layer_norm(x, name="ln", begin_norm_axis=1)

    loss, after = train(body, x, 0.01)
    normed = (x - x.mean((1, 2), keepdims=True)) / np.sqrt(x.var((1, 2), keepdims=True) + 1e-5)
    close(loss, [(normed**2).sum()])
    assert set(after) == {"ln-gamma", "ln-beta"}
    close(after["ln-gamma"], 1 - 0.01 * 2 * (normed**2).sum((0, 1)), 1e-4)
    close(after["ln-beta"], -0.01 * 2 * normed.sum((0, 1)), 1e-4)


def test_layer_norm_options(devices):
    x = X.reshape(3, 2, 5)
    y = predict(
        lambda x: flow.layers.layer_norm(
            x, center=False, scale=True, begin_norm_axis=2, begin_params_axis=1, epsilon=0.1
        ),
        x,
    )
    close(y, (x - x.mean(2, keepdims=True)) / np.sqrt(x.var(2, keepdims=True) + 0.1))
    assert {n: v.shape for n, v in variables().items()} == {"LayerNorm-gamma": (2, 5)}


# Others


def test_prelu(devices):
    alpha = rng.uniform(0.1, 0.9, size=(3, 1, 1))

    def body(x):
        return flow.layers.prelu(x, Given(alpha), shared_axes=[2, 3], name="p")

    loss, after = train(body, IMAGE, 0.01)
    y = np.where(IMAGE > 0, IMAGE, alpha * IMAGE)
    close(loss, [(y * y).sum()])
    close(after["p-alpha"][:, 0, 0], alpha[:, 0, 0] - 0.01 * np.where(IMAGE > 0, 0, 2 * y * IMAGE).sum((0, 2, 3)), 1e-4)


def test_upsample_2d(devices):
    close(predict(lambda x: flow.layers.upsample_2d(x, (2, 3)), IMAGE), IMAGE.repeat(2, 2).repeat(3, 3))


def test_dropout_in_jobs(devices):
    x = np.ones((100, 50), np.float32)

    @flow.global_function(type="train")
    def train_job(x: tp.Numpy.Placeholder(x.shape)) -> tp.Numpy:
        y = flow.nn.dropout(
            flow.layers.dense(x, 50, kernel_initializer=Given(np.eye(50)), trainable=False, use_bias=False), rate=0.25
        )
        w = flow.get_variable("w", [1], initializer=flow.ones_initializer())
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.0])).minimize(y * w)
        return y

    @flow.global_function()
    def predict_job(x: tp.Numpy.Placeholder(x.shape)) -> tp.Numpy:
        return flow.nn.dropout(x, rate=0.25)

    first, second = train_job(x), train_job(x)
    assert set(np.unique(first)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs((first == 0).mean() - 0.25) < 0.03 and (first != second).any()
    assert (first[:50] != first[50:]).any()  # devices draw differently
    close(predict_job(x), x, 0)


def test_random_ops_in_jobs(devices):
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((40, 2))) -> tp.Tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
        return flow.random.shuffle(x), flow.random.coin_flip(30), flow.random.bernoulli(flow.math.add(x * 0, 0.5))

    x = np.arange(80, dtype=np.float32).reshape(40, 2)
    shuffled, coins, drawn = job(x)
    np.testing.assert_array_equal(shuffled[shuffled[:, 0].argsort()], x)
    assert (shuffled != x).any() and set(coins) == {0, 1} and set(np.unique(drawn)) == {0, 1}
    again = job(x)
    assert (again[0] != shuffled).any() and (again[2] != drawn).any()


def test_positions_in_jobs():
    for positions in (flow.argwhere, flow.nonzero, flow.where):
        flow.clear_default_session()
        with pytest.raises(NotImplementedError, match="Use where.condition, x, y. or masked_fill"):
            predict(positions, X)
    flow.clear_default_session()


# Bad input


@pytest.mark.parametrize("body, error, says", [
    (lambda x: flow.layers.dense(flow.reshape(x, [-1]), 3), AssertionError, "two axes or more"),
    (lambda x: flow.layers.dense(x, 0), AssertionError, "units is 0"),
    (lambda x: flow.layers.dense(x, 3, model_distribute=flow.distribute.split(1)), AssertionError,
     r"model_distribute is distribute.split\(1\)"),
    (lambda x: flow.layers.dense(flow.reshape(x, [2, 3, 5]), 3, model_distribute=flow.distribute.split(0)),
     AssertionError, "two axes"),
    (lambda x: flow.layers.dense(flow.layers.dense(x, 3), 3), AssertionError, "'Dense-weight' already"),
    (lambda x: flow.layers.conv2d(x, 3), AssertionError, "must have 4 axes"),
    (lambda x: flow.layers.conv1d(flow.reshape(x, [2, 3, 5]), 4, 2, groups=2), AssertionError,
     "2 groups do not divide 3 channels"),
    (lambda x: flow.layers.conv1d(flow.reshape(x, [2, 3, 5]), 4, 2, data_format="NCHW"), ValueError,
     "data_format is 'NCHW'"),
    (lambda x: flow.layers.conv1d(flow.reshape(x, [2, 3, 5]), 4, 2, padding="same?"), ValueError,
     "padding is 'same\\?'"),
    (lambda x: flow.layers.batch_normalization(x, axis=2), ValueError, "axis 2 is out of range"),
    (lambda x: flow.layers.batch_normalization(x, momentum=2.0), AssertionError, "momentum is 2.0"),
    (lambda x: flow.layers.batch_normalization_add_relu(x, flow.reshape(x, [5, 6])), AssertionError, "the addend is"),
    (lambda x: flow.layers.layer_norm(x, begin_params_axis=3), ValueError, "axis 3 is out of range"),
    (lambda x: flow.layers.prelu(x, shared_axes=[0]), AssertionError, "shared_axes"),
    (lambda x: flow.layers.upsample_2d(x), ValueError, "must have 4 axes"),
    (lambda x: flow.layers.dense(x, 3, kernel_initializer=Given(np.zeros((9, 9)))), Exception, "9"),
])  # fmt: skip
def test_bad_layers(body, error, says):
    flow.clear_default_session()
    with pytest.raises(error, match=says):
        predict(body, X)
    flow.clear_default_session()


def test_outside_of_jobs():
    with pytest.raises(RuntimeError, match="no job function"):
        flow.nn.relu(flow.ones(3))
    with pytest.raises(RuntimeError, match="no job function"):
        flow.constant(1.0, flow.float32, [2])
    with pytest.raises(RuntimeError, match="no job function"):
        flow.get_variable("v", [2], initializer=flow.zeros_initializer())
