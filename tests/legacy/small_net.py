"""A small classifier as a job function in each way of distributing it, and the same in eager mode."""

import numpy as np
import oneflow as flow
import oneflow.typing as tp

ROWS, WIDE, CLASSES = 10, 8, 6


def batches(n, rows=ROWS, seed=0):
    rng = np.random.default_rng(seed)
    return [
        (rng.normal(size=(rows, 2, 4)).astype(np.float32), rng.integers(0, CLASSES, rows).astype(np.int32))
        for _ in range(n)
    ]


def hidden(x):
    return flow.layers.dense(
        flow.reshape(x, [x.shape[0], -1]),
        WIDE,
        activation=flow.nn.relu,
        kernel_initializer=flow.truncated_normal(0.3),
        name="hidden",
    )


def output(h, **options):
    return flow.layers.dense(h, CLASSES, kernel_initializer=flow.truncated_normal(0.3), name="output", **options)


def data(x, n):
    return output(hidden(x))


def model(x, n):
    return output(hidden(x), model_distribute=flow.distribute.split(axis=0))


def stages(x, n):
    with flow.scope.placement("gpu", "0:0"):
        h = hidden(x)
    with flow.scope.placement("gpu", f"0:{n - 1}"):
        return output(h)


def overlapping(x, n):
    with flow.scope.placement("gpu", "0:0"):
        h = hidden(x)
    with flow.scope.placement("gpu", f"0:0-{n - 1}"):
        return output(h, model_distribute=flow.distribute.split(0))


def parts(x, n):
    x = flow.unpack(x, 5)
    with flow.scope.placement("gpu", "0:0"):
        h = hidden(x)
    with flow.scope.placement("gpu", f"0:{n - 1}"):
        return flow.pack(output(h), 5)


def split_batch(x, n):
    return output(hidden(x).with_distribute(flow.distribute.broadcast()))


WAYS = (data, model, stages, overlapping, parts, split_batch)


def sgd(**options):
    return flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([2], [0.5, 0.2]), momentum=0.9, **options)


def train_and_predict(n, way=data, rows=ROWS, optimizer=sgd, config=None):
    """Job functions on n devices that share their variables."""
    flow.config.gpu_device_num(n)

    @flow.global_function(type="train", function_config=config)
    def train(x: tp.Numpy.Placeholder((rows, 2, 4)), y: tp.Numpy.Placeholder((rows,), dtype=flow.int32)) -> tp.Numpy:
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, way(x, n), name="loss")
        optimizer().minimize(loss)
        return loss

    @flow.global_function(function_config=config)
    def predict(x: tp.Numpy.Placeholder((rows, 2, 4))) -> tp.Numpy:
        return way(x, n)

    return train, predict


def run(n, way=data, rows=ROWS, steps=6, **options):
    """The losses of some steps, what predict then gives, and the variables."""
    flow.clear_default_session()
    train, predict = train_and_predict(n, way, rows, **options)
    losses = [train(x, y) for x, y in batches(steps, rows)]
    last = predict(batches(1, rows, seed=9)[0][0])
    return np.stack(losses), last, {name: v.numpy() for name, v in flow.get_all_variables().items()}


def eager(start, steps=6, rows=ROWS):
    """The losses of the same steps by autograd on local tensors. start: the variables before the first."""
    w = {name: flow.tensor(a).requires_grad_() for name, a in start.items()}
    m = {name: flow.zeros_like(a) for name, a in w.items()}
    losses = []
    for s, (x, y) in enumerate(batches(steps, rows)):
        h = flow.relu(flow.matmul(flow.tensor(x).reshape(rows, -1), w["hidden-weight"].T) + w["hidden-bias"])
        logits = flow.matmul(h, w["output-weight"].T) + w["output-bias"]
        each = flow.nn.functional.cross_entropy(logits, flow.tensor(y), reduction="none")
        grads = flow.autograd.grad(each.sum() / rows, list(w.values()))
        lr = 0.5 if s <= 2 else 0.2
        with flow.no_grad():
            for name, g in zip(w, grads):
                m[name].mul_(0.9).sub_(g * lr)
                w[name].add_(m[name])
        losses.append(each.detach().numpy())
    return np.stack(losses), {name: a.detach().numpy() for name, a in w.items()}
