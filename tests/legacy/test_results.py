"""What a call of a job gives back, in each of the ways that an annotation may ask for; handlers of watch()."""

import threading

import numpy as np
import oneflow as flow
import oneflow.typing as tp
import pytest

X = np.arange(6, dtype=np.float32).reshape(3, 2)


def job_of(body, returns=None, **options):
    def job(x):
        return body(x)

    job.__annotations__ = {"x": tp.Numpy.Placeholder((3, 2))} | ({} if returns is None else {"return": returns})
    return flow.global_function(**options)(job)


@pytest.fixture(autouse=True)
def devices():
    flow.config.gpu_device_num(2)


def test_tuples_lists_and_dicts():
    job = job_of(
        lambda x: (x, [x + 1, x + 2], {"three": x + 3}), tp.Tuple[tp.Numpy, tp.List[tp.Numpy], tp.Dict[str, tp.Numpy]]
    )
    a, (b, c), d = job(X)
    for i, found in enumerate((a, b, c, d["three"])):
        np.testing.assert_array_equal(found, X + i)
        assert isinstance(found, np.ndarray)


def test_bundle():
    job = job_of(lambda x: {"a": [x, (x + 1,)]}, tp.Bundle[tp.Numpy])
    found = job(X)
    np.testing.assert_array_equal(found["a"][1][0], X + 1)


def test_list_numpy_of_a_whole():
    job = job_of(lambda x: x, tp.ListNumpy)
    (found,) = job(X)
    np.testing.assert_array_equal(found, X)


def test_future():
    job = job_of(lambda x: (x, x * 2))
    futures = [job(X + i) for i in range(5)]
    for i, f in enumerate(futures):
        x, twice = f.get()
        np.testing.assert_array_equal(x.numpy(), X + i)
        np.testing.assert_array_equal(twice - x, X + i)
        assert x.shape == (3, 2) and len(x.numpy_list()) == 1 and float(x.sum()) == (X + i).sum()
        np.testing.assert_array_equal(x.ndarray(), x.numpy(0))
    got = []
    futures[1].async_get(lambda r: got.append((r[0].numpy()[0, 0], threading.current_thread())))
    flow.sync_default_session()
    assert got[0][0] == 1 and got[0][1] is not threading.main_thread()


def test_arguments_are_copied():
    job = job_of(lambda x: x)
    x = X.copy()
    future = job(x)
    x[:] = -1
    np.testing.assert_array_equal(future.get().numpy(), X)


def test_callbacks_come_in_order():
    job = job_of(lambda x: x[0:1, 0:1], tp.Callback[tp.Numpy])
    got = []
    for i in range(20):
        job(X + i)(lambda v: got.append(int(v[0, 0])))
    flow.sync_default_session()
    assert got == list(range(20))


def test_callback_of_a_dict():
    job = job_of(lambda x: {"a": x}, tp.Callback[tp.Dict[str, tp.Numpy]])
    got = []
    job(X)(got.append)
    flow.sync_default_session()
    np.testing.assert_array_equal(got[0]["a"], X)


def test_nothing_is_returned():
    seen = []

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((3, 2))) -> None:
        flow.watch(x + 1, lambda v: seen.append(v.numpy()))

    assert job(X) is None and job(X) is None
    flow.sync_default_session()
    assert len(seen) == 2
    np.testing.assert_array_equal(seen[1], X + 1)


@pytest.mark.parametrize(
    "result, returns, text",
    [
        (lambda x: (x, x), tp.Numpy, "promises tp.Numpy, and the body returns tuple of 2"),
        (lambda x: (x, x), tp.Tuple[tp.Numpy], "promises a tuple of 1"),
        (lambda x: x, tp.List[tp.Numpy], "promises a list"),
        (lambda x: {1: x}, tp.Dict[str, tp.Numpy], "the key 1"),
        (lambda x: None, tp.Numpy, "returns NoneType"),
        (lambda x: x, np.ndarray, "return annotation .* is none of"),
        (lambda x: (x, 3), tp.Bundle[tp.Numpy], "this one returns int"),
    ],
    ids=["leaf", "length", "list", "key", "none", "unknown", "number"],
)
def test_body_that_returns_something_else(result, returns, text):
    job = job_of(result, returns)
    with pytest.raises(AssertionError, match=text):
        job(X)


def test_nested_arguments_and_older_definitions():
    @flow.global_function()
    def nested(pair: tp.Tuple[tp.Numpy.Placeholder((2,)), tp.Tuple[tp.Numpy.Placeholder((2,))]]) -> tp.Numpy:
        return pair[0] + pair[1][0]

    @flow.global_function()
    def older(
        a=flow.FixedTensorDef((3, 2)),
        b=[flow.FixedTensorDef((1, 2), dtype=flow.float, batch_axis=None)],  # noqa: B006, B008
    ):
        return a * b[0]

    @flow.global_function()
    def none() -> tp.Numpy:
        return flow.constant(3.0, shape=(2,))

    one = np.ones(2, np.float32)
    np.testing.assert_array_equal(nested((one, (one,))), one * 2)
    np.testing.assert_array_equal(older(X, [X[:1]]).get().numpy(), X * X[:1])
    np.testing.assert_array_equal(none(), [3, 3])


def test_watch_and_watch_diff():
    """Handlers run before a synchronous result is given out; gradients are those of the sum of the losses."""
    seen = {}

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((3, 2))) -> tp.Numpy:
        w = flow.get_variable("w", (2,), initializer=flow.constant_initializer(3.0))
        y = x * w
        loss = y * y
        flow.optimizer.SGD(
            flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0, loss_scale_factor=8.0
        ).minimize(loss)

        def keep(name):
            def handler(v: tp.Numpy):
                seen[name] = v

            return handler

        flow.watch(y, keep("y"))
        flow.watch(w, keep("w"))
        flow.watch_diff(y, keep("dy"))
        flow.watch_diff(w, keep("dw"))
        flow.watch_diff(x, keep("dx"))
        return loss

    job(X)
    for name, want in {"y": 3 * X, "w": [3, 3], "dy": 6 * X, "dw": (6 * X * X).sum(0), "dx": 18 * X}.items():
        np.testing.assert_allclose(seen[name], want, rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(flow.get_all_variables()["w"].numpy(), 3 - 0.1 * (6 * X * X).sum(0) / 6, rtol=1e-5)


def test_watch_prints_without_a_handler(capfd):
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((3, 2))) -> tp.Numpy:
        flow.watch(x, "the input:")
        flow.watch(x)
        return x

    job(X)
    out = capfd.readouterr().out
    assert "the input:" in out and out.count("[4., 5.]") == 2


def test_handler_that_raises():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((3, 2))) -> tp.Numpy:
        def handler(v):
            raise KeyError("mine")

        flow.watch(x, handler)
        return x

    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            job(X)


def test_callback_that_raises_or_calls_a_job():
    job = job_of(lambda x: x, tp.Callback[tp.Numpy])

    def raises(v):
        raise KeyError("mine")

    job(X)(raises)
    with pytest.raises(KeyError, match="mine"):
        flow.sync_default_session()
    flow.sync_default_session()
    job(X)(lambda v: job(v))
    with pytest.raises(RuntimeError, match="a handler or callback of a job cannot call a job"):
        flow.sync_default_session()
