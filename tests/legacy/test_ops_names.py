"""The ops by the names and parameters of the older API, as programs call them in job functions."""

import numpy as np
import oneflow as flow
import oneflow.typing as tp
import pytest

X = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
Im = np.array([3, 0, 2], np.int32)


def run(body):
    """What body(x, i) gives in a predict job of two devices."""
    flow.clear_default_session()
    flow.config.gpu_device_num(2)

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(X.shape), i: tp.Numpy.Placeholder(Im.shape, dtype=flow.int32)) -> tp.Numpy:
        return body(x, i)

    try:
        return job(X, Im)
    finally:
        flow.clear_default_session()


CALLS = {
    "reshape": (lambda x, i: flow.reshape(x, shape=[2, -1], name="r"), X.reshape(2, 12)),
    "reshape by keyword": (lambda x, i: flow.reshape(x=x, shape=(3, 8)), X.reshape(3, 8)),
    "flatten": (lambda x, i: flow.flatten(x, start_dim=0, end_dim=-1, name="f"), X.ravel()),
    "transpose": (lambda x, i: flow.transpose(x, perm=[1, 0]), X.T),
    "squeeze": (lambda x, i: flow.squeeze(flow.expand_dims(input=x, axis=1), axis=[1], name="s"), X),
    "concat": (lambda x, i: flow.concat(inputs=[x, x], axis=1, name="c"), np.concatenate([X, X], 1)),
    "concat positional": (lambda x, i: flow.concat([x, x], 0), np.concatenate([X, X])),
    "stack": (lambda x, i: flow.stack(inputs=[x, x], axis=1), np.stack([X, X], 1)),
    "slice": (lambda x, i: flow.slice(x, begin=[1, 2], size=[2, 3]), X[1:3, 2:5]),
    "slice_v2": (lambda x, i: flow.slice_v2(x, [(1, 3, 1)]), X[1:3]),
    "gather": (lambda x, i: flow.gather(params=x, indices=i, axis=0, name="g"), X[Im]),
    "gather_nd": (lambda x, i: flow.gather_nd(params=x, indices=flow.stack([i, i], 1)), X[Im, Im]),
    "scatter_nd": (lambda x, i: flow.scatter_nd(flow.expand_dims(i, 1), flow.gather(x, i), [5, 6]),
                   np.stack([X[0], 0 * X[0], X[2], X[3], 0 * X[0]])),
    "where": (lambda x, i: flow.where(x > 0, x=x, y=x * 2), np.where(X > 0, X, 2 * X)),
    "pad": (lambda x, i: flow.pad(x, paddings=((1, 0), (0, 2)), constant_value=3),
            np.pad(X, ((1, 0), (0, 2)), constant_values=3)),
    "one_hot": (lambda x, i: flow.one_hot(indices=i, depth=4, dtype=flow.float32), np.eye(4, dtype=np.float32)[Im]),
    "cast": (lambda x, i: flow.cast(i, dtype=flow.float64, name="c"), Im.astype(np.float64)),
    "cast by name": (lambda x, i: flow.cast(x=i, dtype=flow.float), Im.astype(np.float32)),
    "matmul": (lambda x, i: flow.matmul(a=x, b=x, transpose_b=True), X @ X.T),
    "matmul operator": (lambda x, i: x @ flow.transpose(x, [1, 0]), X @ X.T),
    "sort": (lambda x, i: flow.sort(x, direction="DESCENDING"), -np.sort(-X)),
    "argsort": (lambda x, i: flow.argsort(input=x, axis=0), np.argsort(X, 0).astype(np.int32)),
    "masked_fill": (lambda x, i: flow.masked_fill(x, mask=x < 0, value=9), np.where(X < 0, np.float32(9), X)),
    "broadcast_like": (lambda x, i: flow.broadcast_like(flow.slice(x, [0, 0], [1, 6]), like=x),
                       np.broadcast_to(X[:1], X.shape)),
    "zeros_like": (lambda x, i: flow.zeros_like(x, dtype=flow.int32, name="z"), np.zeros(X.shape, np.int32)),
    "ones_like": (lambda x, i: flow.ones_like(like=x), np.ones_like(X)),
    "constant": (lambda x, i: flow.constant(1.5, dtype=flow.float, shape=(2, 3), name="c"),
                 np.full((2, 3), 1.5, np.float32)),
    "constant and blob": (lambda x, i: x + flow.constant(1.5, flow.float, (4, 6)), X + np.float32(1.5)),
    "constant_like": (lambda x, i: flow.constant_like(x, 2), np.full_like(X, 2)),
    "constant_scalar": (lambda x, i: flow.constant_scalar(3, flow.int32), np.array([3], np.int32)),
    "range": (lambda x, i: flow.range(2, limit=6, delta=2, dtype=flow.int32), np.array([2, 4], np.int32)),
    "identity": (lambda x, i: flow.identity(x, name="i"), X),
    "clip_by_value": (lambda x, i: flow.clip_by_value(x, min_value=-1, max_value=1), X.clip(-1, 1)),
    "smooth_l1_loss": (lambda x, i: flow.smooth_l1_loss(prediction=x, label=x, beta=2.0), np.zeros_like(X)),
    "tensor_scatter_nd_update": (lambda x, i: flow.tensor_scatter_nd_update(x, flow.constant(2, flow.int32, (1, 1)),
                                                                            flow.constant(1.0, flow.float, (1, 6))),
                                 np.stack([X[0], X[1], np.ones(6, np.float32), X[3]])),
    "tril": (lambda x, i: flow.math.tril(x, diagonal=1), np.tril(X, 1)),
    "reduce_mean": (lambda x, i: flow.math.reduce_mean(x, axis=[0], keepdims=True, name="m"), X.mean(0, keepdims=True)),
    "reduce everything": (lambda x, i: flow.math.reduce_sum(x), X.sum().reshape(1)),
    "comparison": (lambda x, i: x > 0, (X > 0).astype(np.int8)),
    "reflected": (lambda x, i: 1 - x, 1 - X),
    "divided": (lambda x, i: 1 / (x * x + 1), 1 / (X * X + 1)),
    "negative": (lambda x, i: -x, -X),
    "top_k": (lambda x, i: flow.math.top_k(x, k=2), np.argsort(-X)[:, :2].astype(np.int32)),
    "softmax": (lambda x, i: flow.nn.softmax(x, axis=0, name="s"), np.exp(X) / np.exp(X).sum(0)),
    "leaky_relu": (lambda x, i: flow.nn.leaky_relu(x, alpha=0.3), np.where(X > 0, X, 0.3 * X)),
    "bias_add": (lambda x, i: flow.nn.bias_add(value=x, bias=flow.constant(2.0, flow.float, (6,))), X + 2),
    "max_pool2d": (lambda x, i: flow.nn.max_pool2d(flow.reshape(x, [1, 1, 4, 6]), ksize=2, strides=2, padding="VALID",
                                                   data_format="NCHW", name="p"),
                   X.reshape(1, 1, 2, 2, 3, 2).max((3, 5))),
    "moments": (lambda x, i: flow.nn.moments(x, axes=[0])[1], X.var(0)),
    "shuffle": (lambda x, i: flow.sort(flow.random.shuffle(flow.sort(x), seed=3), axis=0), np.sort(np.sort(X), 0)),
    "random mask": (lambda x, i: flow.nn.random_mask_like(x, rate=0.0), np.ones(X.shape, np.int8)),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_calls(name):
    body, expected = CALLS[name]
    found = run(body)
    assert found.shape == expected.shape and found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_names_are_found():
    for name in ("layers", "math", "optimizer", "regularizers"):
        assert getattr(flow, name).__name__ == f"oneflow.single_client.{name}"
    assert flow.truncated_normal(0.1).stddev == 0.1
    with pytest.raises(AttributeError, match="random has no 'normally'"):
        _ = flow.random.normally
    with pytest.raises(AttributeError, match="nn has no 'relu9'"):
        _ = flow.nn.relu9


def test_what_is_not_there():
    with pytest.raises(AttributeError, match="image has no 'decode': images are decoded .* outside job functions"):
        _ = flow.image.decode
    with pytest.raises(AttributeError, match="data has no 'ofrecord_reader': files are not read inside job functions"):
        _ = flow.data.ofrecord_reader
    with pytest.raises(AttributeError, match="summary has no 'histogram': event files are not written"):
        _ = flow.summary.histogram


def test_summary(capsys):
    flow.clear_default_session()

    @flow.global_function()
    def by_step(x: tp.Numpy.Placeholder((2, 2)), step: tp.Numpy.Placeholder((1,), dtype=flow.int64)) -> tp.Numpy:
        flow.summary.scalar(flow.math.reduce_sum(x), step, "sum")
        return x

    @flow.global_function(type="train")
    def by_call(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        loss = flow.layers.dense(x, 1, name="fc", kernel_initializer=flow.ones_initializer())
        flow.summary.scalar(flow.math.reduce_mean(loss), tag="loss")
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.5]), momentum=0).minimize(loss)
        return loss

    by_step(np.full((2, 2), 0.5, np.float32), np.array([7]))
    for _ in range(2):
        by_call(np.ones((2, 3), np.float32))
    flow.sync_default_session()
    assert capsys.readouterr().out.splitlines() == ["sum 7 2", "loss 0 3", "loss 1 1"]
    text = flow.summary.describe(by_call).splitlines()
    assert text[:3] == ["by_call (train)", "  variable fc-weight  [1, 3]  3", "  variable fc-bias  [1]  1"]
    assert text[3] == "  fc  [2, 1]" and text[-1] == "  4 numbers are trained"
    with pytest.raises(TypeError, match="is not a job function"):
        flow.summary.describe(np.sum)
    flow.clear_default_session()
    with pytest.raises(ValueError, match="a blob of one element"):
        flow.summary.scalar(3.0)
