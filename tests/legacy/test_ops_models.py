"""Whole models as programs of the older API write them:
losses and predictions of two and three devices are those of one."""

import math

import numpy as np
import oneflow as flow
import oneflow.typing as tp
import pytest

STEPS = 4
rng = np.random.default_rng(8)


def on(devices, program):
    flow.clear_default_session()
    flow.config.gpu_device_num(devices)
    try:
        return program()
    finally:
        flow.clear_default_session()


def rates():
    return flow.optimizer.PiecewiseConstantScheduler([2], [0.05, 0.01], warmup=flow.optimizer.warmup.linear(2, 0.1))


# A residual network, with the channels last or first


def residual_network(images, last):
    layout, axis = ("NHWC", -1) if last else ("NCHW", 1)

    def conv(x, filters, size, strides, name):
        return flow.layers.conv2d(
            x,
            filters,
            size,
            strides=strides,
            padding="SAME",
            data_format=layout,
            use_bias=False,
            kernel_initializer=flow.variance_scaling_initializer(2, "fan_in", "random_normal", layout),
            kernel_regularizer=flow.regularizers.l2(1e-3),
            name=name,
        )

    def normed(x, name, **options):
        return flow.layers.batch_normalization(x, axis=axis, momentum=0.9, epsilon=1e-5, name=name, **options)

    def block(x, filters, strides, name):
        with flow.scope.namespace(name):
            y = flow.nn.relu(normed(conv(x, filters, 3, strides, "conv1"), "bn1"))
            y = normed(conv(y, filters, 3, 1, "conv2"), "bn2", gamma_initializer=flow.zeros_initializer())
            if strides > 1:
                x = normed(conv(x, filters, 1, strides, "short"), "bn_short")
            return flow.nn.relu(flow.math.add(y, x))

    x = flow.layers.batch_normalization_relu(conv(images, 8, 3, 1, "stem"), axis=axis, name="stem_bn")
    x = flow.nn.max_pool2d(x, ksize=3, strides=2, padding="SAME", data_format=layout, name="pool")
    x = block(block(x, 8, 1, "block1"), 12, 2, "block2")
    x = flow.nn.avg_pool2d(x, ksize=2, strides=2, padding="SAME", data_format=layout)
    x = flow.reshape(x, (x.shape[0], -1))
    return flow.layers.dense(x, 10, kernel_initializer=flow.random_normal_initializer(stddev=0.1), name="fc")


def residual_program(last):
    shape = (7, 9, 9, 3) if last else (7, 3, 9, 9)
    images = rng_of(1).normal(size=(STEPS, *shape)).astype(np.float32)
    labels = rng_of(2).integers(0, 10, (STEPS, 7)).astype(np.int32)

    @flow.global_function(type="train")
    def train_job(
        images: tp.Numpy.Placeholder(shape), labels: tp.Numpy.Placeholder((7,), dtype=flow.int32)
    ) -> tp.Numpy:
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, residual_network(images, last), name="loss")
        flow.optimizer.SGD(rates(), momentum=0.9).minimize(loss)
        return loss

    @flow.global_function()
    def predict_job(images: tp.Numpy.Placeholder(shape)) -> tp.Numpy:
        return flow.nn.softmax(residual_network(images, last))

    return [*(train_job(x, y) for x, y in zip(images, labels)), predict_job(images[0])]


def rng_of(seed):
    return np.random.default_rng(seed)


# A transformer's encoder that fills in masked words

VOCABULARY, WIDTH, HEADS, LENGTH, BATCH = 23, 12, 3, 6, 5


def variable(name, shape):
    return flow.get_variable(name, shape, dtype=flow.float, initializer=flow.truncated_normal_initializer(stddev=0.1))


def dense(x, units, name, activation=None):
    initializer = flow.truncated_normal_initializer(stddev=0.1)
    return flow.layers.dense(x, units, activation=activation, kernel_initializer=initializer, name=name)


def attention(x, mask, name):
    def heads(name, perm):
        y = flow.reshape(dense(x, WIDTH, name), [-1, LENGTH, HEADS, WIDTH // HEADS])
        return flow.transpose(y, perm=perm)

    with flow.scope.namespace(name):
        q, k, v = (heads(n, [0, 2, 1, 3]) for n in ("query", "key", "value"))
        scores = flow.math.multiply(flow.matmul(q, k, transpose_b=True), 1 / math.sqrt(WIDTH // HEADS))
        scores = flow.math.add(scores, flow.math.multiply(flow.math.subtract(mask, 1.0), 1e4))
        y = flow.matmul(flow.nn.dropout(flow.nn.softmax(scores), rate=0.0), v)
        return dense(flow.reshape(flow.transpose(y, perm=[0, 2, 1, 3]), [-1, WIDTH]), WIDTH, "output")


def encoder(ids, lengths, model_distribute):
    table = flow.get_variable(
        "table",
        (VOCABULARY, WIDTH),
        initializer=flow.random_normal_initializer(stddev=0.1),
        distribute=model_distribute,
    )
    x = flow.reshape(flow.gather(params=table, indices=flow.flatten(ids)), [-1, LENGTH, WIDTH])
    x = flow.math.add(x, flow.expand_dims(variable("positions", (LENGTH, WIDTH)), 0))
    x = flow.reshape(flow.layers.layer_norm(x, begin_norm_axis=-1, begin_params_axis=-1, name="norm"), [-1, WIDTH])
    places = flow.expand_dims(flow.range(LENGTH, dtype=flow.int32), 0)
    mask = flow.cast(flow.math.less(places, flow.expand_dims(lengths, 1)), flow.float)
    mask = flow.reshape(mask, [-1, 1, 1, LENGTH])
    for i in range(2):
        with flow.scope.namespace(f"layer{i}"):
            y = flow.math.add(attention(x, mask, "attention"), x)
            y = flow.layers.layer_norm(y, begin_norm_axis=-1, begin_params_axis=-1, name="norm1")
            z = dense(dense(y, 2 * WIDTH, "up", flow.math.gelu), WIDTH, "down")
            x = flow.layers.layer_norm(flow.math.add(y, z), begin_norm_axis=-1, begin_params_axis=-1, name="norm2")
    logits = flow.matmul(x, table, transpose_b=True)
    return flow.nn.bias_add(
        logits, flow.get_variable("output_bias", (VOCABULARY,), initializer=flow.zeros_initializer())
    )


def transformer_program(split):
    ids = rng_of(3).integers(0, VOCABULARY, (STEPS, BATCH, LENGTH)).astype(np.int32)
    lengths = rng_of(4).integers(2, LENGTH + 1, (STEPS, BATCH)).astype(np.int32)
    distribute = flow.distribute.split(0) if split else flow.distribute.broadcast()

    @flow.global_function(type="train")
    def train_job(
        ids: tp.Numpy.Placeholder((BATCH, LENGTH), dtype=flow.int32),
        lengths: tp.Numpy.Placeholder((BATCH,), dtype=flow.int32),
    ) -> tp.Numpy:
        logits = encoder(ids, lengths, distribute)
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(flow.reshape(ids, [-1]), logits)
        loss = flow.math.reduce_mean(flow.reshape(loss, [-1, LENGTH]), axis=1)
        clipping = flow.optimizer.grad_clipping.by_global_norm(1.0)
        flow.optimizer.AdamW(
            rates(),
            epsilon=1e-6,
            weight_decay=0.01,
            weight_decay_excludes=["bias", "norm"],
            grad_clipping=clipping,
            do_bias_correction=True,
        ).minimize(loss)
        return loss

    @flow.global_function()
    def predict_job(
        ids: tp.Numpy.Placeholder((BATCH, LENGTH), dtype=flow.int32),
        lengths: tp.Numpy.Placeholder((BATCH,), dtype=flow.int32),
    ) -> tp.Numpy:
        return flow.nn.softmax(encoder(ids, lengths, distribute))

    return [*(train_job(x, n) for x, n in zip(ids, lengths)), predict_job(ids[0], lengths[0])]


PROGRAMS = {
    "residual network": lambda: residual_program(False),
    "residual network, channels last": lambda: residual_program(True),
    "transformer": lambda: transformer_program(False),
    "transformer with a divided table": lambda: transformer_program(True),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_devices_compute_what_one_does(name):
    one = on(1, PROGRAMS[name])
    assert all(np.isfinite(v).all() for v in one) and one[0].mean() > one[STEPS - 1].mean() * 0.5
    np.testing.assert_allclose(one[-1].sum(-1), 1, rtol=1e-5)
    assert np.abs(one[0] - one[1]).max() > 1e-3
    for devices in (2, 3):
        for a, b in zip(one, on(devices, PROGRAMS[name])):
            np.testing.assert_allclose(b, a, rtol=5e-4, atol=5e-5)
