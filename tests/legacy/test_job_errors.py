"""What goes wrong says so, at the call that it concerns, and hangs nobody."""

import threading

import numpy as np
import oneflow as flow
import oneflow.typing as tp
import pytest

X = np.ones((4, 2), np.float32)


def make(body=lambda x: x, shape=(4, 2), returns=tp.Numpy, name="job", **options):
    def job(x):
        return body(x)

    job.__name__ = name
    job.__annotations__ = {"x": tp.Numpy.Placeholder(shape), "return": returns}
    return flow.global_function(**options)(job)


def minimized(loss, lr=0.1):
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [lr]), momentum=0).minimize(loss)
    return loss


def weight(shape=(2,), name="w", **options):
    return flow.get_variable(name, shape, initializer=flow.ones_initializer(), **options)


# Arguments


@pytest.mark.parametrize(
    "args, error, text",
    [
        ((), AssertionError, r"job: takes 1 argument \(x\), got 0"),
        ((X, X), AssertionError, "takes 1 argument .* got 2"),
        (
            (X.tolist(),),
            AssertionError,
            r"x must be a numpy.ndarray \(an array of oneflow.float32 \[4, 2\]\), got list of 4",
        ),
        ((flow.ones(4, 2),), AssertionError, "must be a numpy.ndarray .* got Tensor"),
        ((X[:3],), AssertionError, r"must have the shape \[4, 2\] of its placeholder, got \[3, 2\]"),
        (
            (X.astype(np.float64),),
            TypeError,
            "must be oneflow.float32 as its placeholder, got float64. Convert it: x.astype",
        ),
        ((X.astype("U4"),), TypeError, "must be oneflow.float32 as its placeholder"),
    ],
    ids=["none", "two", "list", "tensor", "shape", "dtype", "text"],
)
def test_arguments(args, error, text):
    flow.config.gpu_device_num(2)
    job = make()
    with pytest.raises(error, match=text):
        job(*args)
    np.testing.assert_array_equal(job(X), X)


def test_arguments_by_name():
    with pytest.raises(AssertionError, match="go by position, not by name: x"):
        make()(x=X)


# Definitions


@pytest.mark.parametrize(
    "make_function, error, text",
    [
        (lambda: lambda *args: None, NotImplementedError, r"\*args accepts any number"),
        (lambda: lambda x: None, NotImplementedError, "what is the parameter 'x'"),
        (lambda: lambda x=3: None, NotImplementedError, "default of 'x' is int"),
    ],
    ids=["any", "untold", "default"],
)
def test_parameters(make_function, error, text):
    with pytest.raises(error, match=text):
        flow.global_function()(make_function())


def test_mixed_parameters():
    with pytest.raises(NotImplementedError, match="some parameters are annotated"):

        @flow.global_function()
        def job(x: tp.Numpy.Placeholder((2,)), y=flow.FixedTensorDef((2,))):  # noqa: B008
            return x


def test_annotation_that_is_none():
    with pytest.raises(NotImplementedError, match="annotation of 'x' is <class 'int'>"):

        @flow.global_function()
        def job(x: int):
            return x


@pytest.mark.parametrize("shape", [(0, 2), (-1,), 3, (2.0,)], ids=str)
def test_placeholder(shape):
    with pytest.raises(AssertionError, match="Numpy.Placeholder: shape"):
        tp.Numpy.Placeholder(shape)


def test_type_of_the_job():
    with pytest.raises(AssertionError, match='\'serve\'; it must be "train" or "predict"'):
        flow.global_function(type="serve")
    with pytest.raises(TypeError, match="function_config must be"):
        flow.global_function(function_config={})


def test_names_of_jobs():
    make()
    with pytest.raises(ValueError, match="there is a job function named job already"):
        make()


def test_after_the_start():
    job = make()
    job(X)
    with pytest.raises(RuntimeError, match="late comes after the session's first call"):
        make(name="late")
    assert flow.config.gpu_device_num(2) is False
    flow.clear_default_session()
    with pytest.raises(RuntimeError, match="clear_default_session.. forgot it"):
        job(X)


def test_list_placeholder_in_the_consistent_view():
    @flow.global_function()
    def job(x: tp.ListNumpy.Placeholder((2,))) -> tp.Numpy:
        return x

    with pytest.raises(AssertionError, match="argument x is tp.ListNumpy.Placeholder, which is for the mirrored view"):
        job([np.ones(2, np.float32)])


# Bodies


def test_error_of_any_body_surfaces_at_the_first_call():
    good = make(name="good")

    def body(x):
        raise KeyError("mine")

    make(body, name="bad")
    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            good(X)


def test_ops_outside():
    with pytest.raises(RuntimeError, match="relu: is an op of job functions"):
        flow.nn.relu(flow.ones(2))
    with pytest.raises(RuntimeError, match="get_variable: is an op of job functions"):
        weight()
    with pytest.raises(RuntimeError, match="watch: is an op of job functions"):
        flow.watch(3)
    kept = []
    make(lambda x: kept.append(x) or x)(X)
    with pytest.raises(RuntimeError, match="is an op of job functions"):
        kept[0] + 1
    with pytest.raises(RuntimeError, match="has no values inside a job function"):
        kept[0].numpy()


def test_blob_of_another_job():
    kept = []
    first = make(lambda x: kept.append(x) or x, name="first")
    make(lambda x: x + kept[0], name="second")
    with pytest.raises(ValueError, match="belongs to the job function first; this is second"):
        first(X)


def test_no_loss():
    with pytest.raises(RuntimeError, match="job: loss not found"):
        make(lambda x: x * weight(), type="train")(X)


def test_loss_of_no_variable():
    with pytest.raises(RuntimeError, match="depends on no variable that is trainable"):
        make(lambda x: minimized(x * weight(trainable=False)), type="train")(X)


def test_minimize_in_a_predict_job():
    with pytest.raises(RuntimeError, match="job is a predict job"):
        make(lambda x: minimized(x * weight()))(X)


def test_two_optimizers():
    with pytest.raises(RuntimeError, match="has an optimizer already"):
        make(lambda x: minimized(minimized(x * weight())), type="train")(X)


def test_losses_that_differ():
    with pytest.raises(AssertionError, match="losses must "):
        make(lambda x: minimized([x * weight(), weight(name="v")]) and x, type="train")(X)


def test_shapes_that_do_not_fit_name_the_line():
    def body(x):
        return flow.matmul(x, x)

    with pytest.raises(ValueError, match="matmul.*"):
        make(body)(X)


def test_truth_of_a_blob():
    with pytest.raises(RuntimeError, match="has no truth value"):
        make(lambda x: x if x else x + 1)(X)


def test_change_in_place():
    with pytest.raises(TypeError, match="cannot be changed in place. Use relu"):
        make(lambda x: x.relu_())(X)


# Variables


def test_variable_of_another_shape():
    one = make(lambda x: x * weight((2,)), name="one")
    make(lambda x: x * weight((4, 2)), name="two")
    with pytest.raises(ValueError, match=r"'w' has another shape \(2,\) .*test_job_errors.py:\d+.* and \(4, 2\)"):
        one(X)


@pytest.mark.parametrize(
    "what, other",
    [("dtype", {"dtype": flow.float64}), ("distribute", {"distribute": flow.distribute.split(0)})],
    ids=["dtype", "split"],
)
def test_variable_that_differs(what, other):
    one = make(lambda x: weight(), name="one")
    make(lambda x: weight(**other), name="two")
    with pytest.raises(ValueError, match=f"'w' has another {what}"):
        one(X)


def test_variable_on_other_devices():
    flow.config.gpu_device_num(2)

    def elsewhere(x):
        with flow.scope.placement("gpu", "0:1"):
            return weight()

    one = make(lambda x: weight(), name="one")
    make(elsewhere, name="two")
    with pytest.raises(ValueError, match="'w' has another placement of all devices .* and scope.placement"):
        one(X)


@pytest.mark.parametrize(
    "body, error, text",
    [
        (lambda x: weight() + weight((3,)), ValueError, r"'w' is oneflow.float32 \[2\] .* cannot be .* \(3,\)"),
        (lambda x: weight() + weight(reuse=False), AssertionError, "has a variable 'w' already, and reuse=False"),
        (lambda x: weight(3), AssertionError, "the shape of 'w' must be a list or tuple, got 3"),
        (
            lambda x: flow.get_variable("w", (2,)),
            ValueError,
            "'w' has no initializer, and function_config has no default_initializer_conf",
        ),
        (lambda x: weight(distribute=flow.distribute.split(1)), ValueError, "has no axis 1 to split along"),
        (lambda x: weight(distribute=3), AssertionError, "3 is none of distribute.split"),
        (lambda x: flow.layers.dense(flow.layers.dense(x, 3), 3), AssertionError, "'Dense-weight' already"),
    ],
    ids=["shape", "reuse", "int", "initializer", "axis", "distribute", "layers"],
)
def test_variables(body, error, text):
    with pytest.raises(error, match=text):
        make(body)(X)


def test_default_initializer():
    config = flow.function_config()
    config.default_initializer_conf({"constant_conf": {"value": 3}})
    np.testing.assert_array_equal(make(lambda x: flow.get_variable("w", (2,)), function_config=config)(X), [3, 3])


# Devices and scopes


def test_fewer_rows_than_devices():
    flow.config.gpu_device_num(5)
    with pytest.raises(
        ValueError, match=r"job: argument x \[4, 2\] is split along axis 0 over 5 devices, and has only 4"
    ):
        make()(X)


@pytest.mark.parametrize(
    "body, text",
    [
        (
            lambda x: weight(distribute=flow.distribute.split(0)),
            r"get_variable: 'w' \[2\] is split along axis 0 over 3 devices, and has only 2",
        ),
        (
            lambda x: (x + 1).with_split_distribute(1),
            r"parallel_cast: add_0 \[4, 2\] is split along axis 1 over 3 devices",
        ),
    ],
    ids=["variable", "blob"],
)
def test_split_axis_smaller_than_the_devices(body, text):
    flow.config.gpu_device_num(3)
    with pytest.raises(ValueError, match=text):
        make(body)(X)


def test_device_that_is_not_there():
    flow.config.gpu_device_num(2)

    def body(x):
        with flow.scope.placement("gpu", "0:2"):
            return x + 1

    with pytest.raises(ValueError, match="there is no device 0:2. The session has 1 machine"):
        make(body)(X)


@pytest.mark.parametrize(
    "tag, ids",
    [("npu", "0:0"), ("gpu", "0"), ("gpu", "0:3-1"), ("gpu", []), ("gpu", 3), ("gpu", ["0:0", 1]), ("gpu", "0:a")],
    ids=str,
)
def test_placement(tag, ids):
    with pytest.raises(AssertionError, match="scope.placement"):
        flow.scope.placement(tag, ids)


def test_forms_of_placement():
    assert flow.scope.placement("gpu", "@1:0-1").ranks(2, 4) == (4, 5)
    assert flow.scope.placement("cpu", ["0:3", "1:1-2"]).ranks(2, 4) == (3, 5, 6)


def test_split_axes():
    assert (
        flow.distribute.split(axis=1) is flow.distribute.split(1)
        and flow.distribute.broadcast() is flow.distribute.broadcast()
    )
    for axis in (-1, 11, 1.0, True):
        with pytest.raises(AssertionError, match="must be an int from 0 to 10"):
            flow.distribute.split(axis)


def test_both_views_in_one_job():
    def body(x):
        y = x + 1
        with flow.scope.mirrored_view():
            return y + 1

    with pytest.raises(NotImplementedError, match="some of its ops are in the mirrored view"):
        make(body)(X)


# Streams


@pytest.mark.parametrize(
    "body, text",
    [
        (lambda x: flow.unpack(x, 3), r"cannot be cut along its first axis into 3 equal parts"),
        (lambda x: flow.unpack(flow.unpack(x, 2), 2), "is a stream already"),
        (lambda x: flow.pack(flow.unpack(x, 2), 4), "has 2 part.s.; pack_num is 4"),
        (lambda x: flow.unpack(x, 2) + flow.unpack(x[0:2], 1) + flow.unpack(x, 4), "inputs are streams of"),
        (lambda x: flow.acc(flow.unpack(x, 4), 3), "cannot be summed by 3"),
    ],
    ids=["divide", "twice", "pack", "mixed", "acc"],
)
def test_streams(body, text):
    with pytest.raises(ValueError, match=text):
        make(body)(X)


# Ranks


def test_error_on_one_rank_reaches_the_caller():
    """What one rank alone raises ends the waits of the others,
    and each later call says why there is no session any more."""
    from oneflow.single_client.record import op

    flow.config.gpu_device_num(3)
    threads = threading.active_count()

    @op
    def odd(x):
        if x.is_global and flow.env.get_rank() == 1:
            raise ZeroDivisionError("on rank 1 alone")
        return x.to_global(x.placement, flow.sbp.broadcast) + 1 if x.is_global else x + 1

    job = make(lambda x: odd(x))
    with pytest.raises(ZeroDivisionError, match=r"on rank 1 alone \(in odd_0, .*test_job_errors.py:\d+\)$"):
        job(X)
    with pytest.raises(RuntimeError, match="the session has ended by an error in an earlier call: on rank 1 alone"):
        job(X)
    with pytest.raises(RuntimeError, match="ended by an error"):
        flow.get_all_variables()
    flow.clear_default_session()
    assert threading.active_count() <= threads + 1
    flow.config.gpu_device_num(3)
    np.testing.assert_array_equal(make()(X), X)


def test_error_of_a_value():
    """Only the run can know: a label beyond the classes."""
    flow.config.gpu_device_num(2)

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 2)), y: tp.Numpy.Placeholder((4,), dtype=flow.int32)) -> tp.Numpy:
        return flow.nn.sparse_softmax_cross_entropy_with_logits(y, x)

    with pytest.raises((ValueError, IndexError, RuntimeError), match="7"):
        job(X, np.array([0, 1, 7, 0], np.int32))


def test_error_of_a_call_that_nobody_waits_for():
    from oneflow.single_client.record import op

    flow.config.gpu_device_num(2)

    @op
    def bad(x):
        if x.is_global:
            raise ZeroDivisionError("later")
        return x

    def body(x):
        flow.watch(bad(x))

    job = make(body, returns=None)
    assert job(X) is None
    with pytest.raises(ZeroDivisionError, match="later"):
        flow.sync_default_session()
    flow.sync_default_session()


# Settings


def test_config():
    config = flow.function_config()
    config.enable_auto_mixed_precision(True)
    config.tensorrt.use_fp16()
    config.default_data_type(flow.float64)
    with pytest.raises(AttributeError, match="function_config has no 'no_such_thing'"):
        config.no_such_thing(3)
    with pytest.raises(AttributeError, match="function_config.train has no 'x'"):
        config.train.x(3)
    with pytest.raises(TypeError, match="default_placement_scope: takes scope.placement"):
        config.default_placement_scope("0:0")
    with pytest.raises(TypeError, match="default_logical_view: takes scope.mirrored_view"):
        config.default_logical_view("mirrored")
    assert (
        make(lambda x: flow.get_variable("w", (2,), initializer=flow.ones_initializer()), function_config=config)(
            X
        ).dtype
        == np.float64
    )

    for call, error in (
        (lambda: flow.config.gpu_device_num(1.0), TypeError),
        (lambda: flow.config.machine_num(0), ValueError),
        (lambda: flow.config.nothing(1), AttributeError),
        (lambda: flow.config.collective_boxing.nothing(1), AttributeError),
        (lambda: flow.env.machine([{"addr": "a"}, {"addr": "a"}]), AssertionError),
        (lambda: flow.env.ctrl_port("x"), TypeError),
    ):
        with pytest.raises(error):
            call()


def test_machines_without_a_launcher():
    flow.env.machine(["10.0.0.1", "10.0.0.2"])
    with pytest.raises(RuntimeError, match="env.machine names 2 machines, and this process runs alone"):
        make()(X)


def test_machines_in_one_process():
    flow.config.machine_num(2)
    flow.config.gpu_device_num(2)

    def body(x):
        with flow.scope.placement("gpu", ["0:1", "1:0"]):
            return x + 1

    np.testing.assert_array_equal(make(body)(X), X + 1)


def test_variable_named_as_a_state():
    def body(x):
        loss = x * weight() * weight(name="w-momentum")
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss

    with pytest.raises(ValueError, match="a state 'w-momentum', and a variable has this name"):
        make(body, type="train")(X)


def test_cpu_devices():
    flow.config.cpu_device_num(2)

    def body(x):
        with flow.scope.placement("cpu", "0:0-1"):
            return flow.layers.dense(x, 3, kernel_initializer=flow.ones_initializer())

    np.testing.assert_allclose(make(body)(X), np.full((4, 3), 2))
    assert flow.current_resource() == {"machine_num": 1, "gpu_device_num": 2, "cpu_device_num": 2}
