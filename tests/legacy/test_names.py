"""`import oneflow as flow` gives the older names, `import holon` does not;
the ops of both interfaces know blobs from tensors."""

import subprocess
import sys

import numpy as np
import oneflow as flow
import oneflow.typing as tp
import pytest
from harness.ranks import environment


def test_holon_does_not_load_the_older_interface():
    code = """
        import holon, sys
        holon.nn.ReLU(), holon.nn.functional.relu(holon.ones(2))
        assert not any("oneflow" in m for m in sys.modules), [m for m in sys.modules if "oneflow" in m]
    """
    subprocess.run(
        [sys.executable, "-c", "\n".join(line.strip() for line in code.splitlines())],
        env=environment(),
        check=True,
        timeout=60,
    )


def test_names():
    import oneflow
    import oneflow.typing

    assert oneflow.float32 is flow.float32  # which makes texts say "oneflow"
    assert oneflow.typing is tp is flow.single_client.typing
    for name in (
        "global_function",
        "function_config",
        "FunctionConfig",
        "get_variable",
        "get_all_variables",
        "load_variables",
        "parallel_cast",
        "pack",
        "unpack",
        "repeat",
        "acc",
        "watch",
        "watch_diff",
        "clear_default_session",
        "sync_default_session",
        "eager_execution_enabled",
        "enable_eager_execution",
        "config.gpu_device_num",
        "config.machine_num",
        "config.collective_boxing.nccl_num_streams",
        "env.machine",
        "env.ctrl_port",
        "env.init",
        "scope.placement",
        "scope.mirrored_view",
        "scope.consistent_view",
        "scope.namespace",
        "distribute.split",
        "distribute.mirrored_strategy",
        "advanced.distribute_clone",
        "advanced.distribute_map",
        "train.CheckPoint",
        "train.SimpleCheckPointManager",
        "checkpoint.save",
        "checkpoint.get",
        "current_scope",
        "current_machine_id",
        "current_resource",
        "mirrored_view_enabled",
        "consistent_view_enabled",
        "cast_to_current_logical_view",
        "MirroredTensorDef",
        "MirroredTensorListDef",
        "nn.dropout",
    ):
        ours, theirs = flow, oneflow
        for part in name.split("."):
            ours, theirs = getattr(ours, part), getattr(theirs, part)
        assert callable(ours), name
    for where in (flow, oneflow, flow.nn, flow.scope, flow.distribute, flow.config, flow.env):
        with pytest.raises(AttributeError, match="no (attribute )?'no_such_name"):
            where.no_such_name  # noqa: B018


def test_functions_of_both_interfaces():
    """Names that mean something else for tensors, and classes that were functions, go by their arguments."""

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Tuple[tp.Numpy, tp.Numpy, tp.Numpy, tp.Numpy, tp.Numpy]:
        assert flow.reshape(x, [3, -1]).shape == (3, 2) and flow.relu(x).dtype == flow.float
        loss = flow.nn.MSELoss(x, x + 2)
        assert loss.shape == (1,)  # there are no blobs without axes
        return flow.concat([x, x], axis=0), 1 - x * 2, loss, x.reshape(6)[1:3], -x

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    joined, minus, loss, part, negative = job(x)
    np.testing.assert_array_equal(joined, np.concatenate([x, x]))
    np.testing.assert_array_equal(minus, 1 - x * 2)
    np.testing.assert_allclose(loss, [4])
    np.testing.assert_array_equal(part, [1, 2])
    np.testing.assert_array_equal(negative, -x)
    assert flow.nn.MSELoss()(flow.ones(2), flow.zeros(2)).item() == 1 and flow.relu(flow.ones(2)).sum().item() == 2


def test_tensors_beside_blobs():
    """A tensor of the user's is a constant of the job."""
    flow.config.gpu_device_num(2)
    t = flow.tensor([1.0, 2.0, 3.0])

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Tuple[tp.Numpy, tp.Numpy]:
        return x * t, t - x

    a, b = job(np.ones((2, 3), np.float32))
    np.testing.assert_array_equal(a, [[1, 2, 3]] * 2)
    np.testing.assert_array_equal(b, [[0, 1, 2]] * 2)


class Stand:
    """What an op gets instead of a tensor."""

    @staticmethod
    def __holon_function__(function, args, kwargs):
        return function.__name__, args, kwargs


def test_ops_ask_what_is_no_tensor():
    s = Stand()
    assert flow.relu(s) == ("relu", (s,), {})
    assert flow.relu_(s) == ("relu_", (s,), {})
    assert flow.sum(s, dim=0) == ("sum", (s,), {"dim": 0})
    assert flow.sum(x=s) == ("sum", (), {"x": s})
    assert flow.add(1, s) == ("add", (1, s), {}) and flow.max(s, 1)[0] == "max"
    assert flow.concat([flow.ones(2), s])[0] == "concat"
    assert flow.ones(2).matmul(s)[0] == "matmul"
    with pytest.raises(TypeError, match="must be Tensor, got object"):
        flow.relu(object())

    class Bad:
        @staticmethod
        def __holon_function__(function, args, kwargs):
            raise KeyError(function.__name__)

    with pytest.raises(KeyError, match="relu"):
        flow.relu(Bad())
