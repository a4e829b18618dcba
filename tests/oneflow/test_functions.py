"""What the oneflow package says otherwise than holon: functions with other parameters, texts, the classes of errors."""

import os
import pickle
import subprocess
import sys

import numpy as np
import oneflow as flow
import oneflow.nn as nn
import pytest

B, S = flow.sbp.broadcast, flow.sbp.split
A = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)


def a():
    return flow.tensor(A)


def test_products_with_options():
    want = 0.5 * A @ A.T
    for matmul in (flow.matmul, flow._C.matmul):
        np.testing.assert_allclose(matmul(a(), a(), transpose_b=True, alpha=0.5).numpy(), want, rtol=1e-5)
    np.testing.assert_allclose(flow.matmul(a(), a(), transpose_a=True).numpy(), A.T @ A, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(flow._C.matmul(a(), a().T, False, False, 2.0).numpy(), 2 * A @ A.T, rtol=1e-5)
    np.testing.assert_allclose(a().matmul(a(), transpose_b=True).numpy(), A @ A.T, rtol=1e-5)
    assert flow.matmul(a(), a()[0]).shape == (4,)
    with pytest.raises(RuntimeError, match="transpose_b exchanges the last two axes"):
        flow.matmul(a(), a()[0], transpose_b=True)
    x = flow.tensor(A, requires_grad=True)
    flow.matmul(x, x, transpose_b=True, alpha=0.5).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.tile(A.sum(0), (4, 1)), rtol=1e-4, atol=1e-5)


def test_products_with_options_of_global_tensors():
    def check(rank):
        p = flow.placement.all("cpu")
        x, w = flow.tensor(A, placement=p, sbp=B), flow.tensor(A, placement=p, sbp=S(0))
        y = flow.matmul(x, w, transpose_b=True)
        assert y.sbp == (S(1),)
        np.testing.assert_allclose(y.numpy(), A @ A.T, rtol=1e-5)

    flow.run_ranks(2, check)


def test_gather_by_axis():
    ids = np.array([[3, 0], [1, 1]])
    for axis in (0, 1, -1):
        np.testing.assert_array_equal(flow._C.gather(a(), flow.tensor(ids), axis=axis).numpy(), np.take(A, ids, axis))
    np.testing.assert_array_equal(
        flow._C.dim_gather(a(), 1, flow.tensor(ids)).numpy(), np.take_along_axis(A[:2], ids, 1)
    )


def test_norms():
    weight, bias = np.arange(6, dtype=np.float32), np.ones(6, np.float32)
    normal = (A - A.mean(1, keepdims=True)) / np.sqrt(A.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(
        flow._C.layer_norm(a(), begin_norm_axis=1, begin_params_axis=1, epsilon=1e-5).numpy(),
        normal,
        rtol=1e-4,
        atol=1e-5,
    )
    got = flow._C.layer_norm_affine(
        a(), flow.tensor(weight), flow.tensor(bias), begin_norm_axis=1, begin_params_axis=1, epsilon=1e-5
    )
    np.testing.assert_allclose(got.numpy(), normal * weight + bias, rtol=1e-4, atol=1e-5)
    got = flow._C.rms_norm(a(), flow.tensor(weight), [6], 1e-6)
    np.testing.assert_allclose(
        got.numpy(), A / np.sqrt((A**2).mean(1, keepdims=True) + 1e-6) * weight, rtol=1e-4, atol=1e-5
    )


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_fused_softmax():
    mask = (A > -0.5).astype(np.int8)
    want = softmax(np.where(mask, 2 * A, -10000.0))
    dropped, kept = flow._C.fused_scale_mask_softmax_dropout(
        a(), flow.tensor(mask), fill_value=-10000.0, scale=2.0, p=0.0
    )
    for got in (
        dropped,
        kept,
        flow._C.fused_scale_mask_softmax(a(), flow.tensor(mask), fill_value=-10000.0, scale=2.0),
    ):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-6)
    # LiBai passes None where there is no scale.
    got = flow._C.fused_scale_mask_softmax_dropout(a(), flow.tensor(mask), fill_value=-10000.0, scale=None, p=0.0)[0]
    np.testing.assert_allclose(got.numpy(), softmax(np.where(mask, A, -10000.0)), rtol=1e-4, atol=1e-6)
    square = A[:, :4].copy()
    got = flow._C.fused_scale_tril_softmax_mask_scale(
        flow.tensor(square), p=0.0, diagonal=0, tril_scale_value=2.0, tril_fill_value=-1e4
    )[0]
    np.testing.assert_allclose(got.numpy(), softmax(np.where(np.tri(4) > 0, 2 * square, -1e4)), rtol=1e-4, atol=1e-6)
    got = flow._C.fused_bias_add_dropout(a(), flow.ones(6), p=0.0, axis=1)
    np.testing.assert_allclose(got.numpy(), A + 1, rtol=1e-6)


def test_fused_attention_of_an_inference():
    x = np.random.default_rng(1).standard_normal((2, 3, 8)).astype(np.float32)
    got = flow._C.fused_multi_head_attention_inference(*(flow.tensor(x),) * 3, num_heads=2)
    heads = x.reshape(2, 3, 2, 4).transpose(0, 2, 1, 3)
    want = softmax(heads @ heads.transpose(0, 1, 3, 2) / 2) @ heads
    np.testing.assert_allclose(got.numpy(), want.transpose(0, 2, 1, 3).reshape(2, 3, 8), rtol=1e-4, atol=1e-5)


def test_losses():
    labels = np.array([0, 5, 2, 1])
    logp = np.log(softmax(A))
    want = -logp[np.arange(4), labels]
    np.testing.assert_allclose(flow._C.sparse_softmax_cross_entropy(a(), flow.tensor(labels)).numpy(), want, rtol=1e-4)
    np.testing.assert_allclose(
        nn.functional.sparse_softmax_cross_entropy(flow.tensor(labels), a()).numpy(), want, rtol=1e-4
    )
    np.testing.assert_allclose(
        flow._C.cross_entropy(a(), flow.tensor(labels), None, -100, "none", 0.0).numpy(), want, rtol=1e-4
    )


def test_slices():
    np.testing.assert_array_equal(flow.slice(a(), slice_tup_list=[[0, 3, 2], [None, None, None]]).numpy(), A[0:3:2])
    x = flow.zeros(4)
    assert flow.slice_update(x, flow.ones(2), [[1, 3, 1]]) is x and x.tolist() == [0, 1, 1, 0]


def test_transpose_both_ways():
    x = flow.ones(2, 3, 4)
    assert flow.transpose(x, perm=(2, 0, 1)).shape == (4, 2, 3) == flow._C.transpose(x, (2, 0, 1)).shape
    assert (
        flow.transpose(x, 0, 2).shape == (4, 3, 2) == flow.transpose(x, dim0=0, dim1=2).shape == x.transpose(0, 2).shape
    )


def test_likes():
    p = flow.placement("cpu", [0])
    for like in (flow.zeros_like, flow.ones_like, flow.empty_like, flow.randn_like, flow.rand_like):
        y = like(a(), placement=p, sbp=B, dtype=flow.float64)
        assert y.is_global and y.shape == (4, 6) and y.dtype == flow.float64
        assert like(a(), device="cpu").is_local and like(y).is_global
    assert flow.full_like(a(), 3.0, placement=p, sbp=B).numpy().max() == 3.0
    assert flow.randint_like(a(), 0, 3, placement=p, sbp=B, dtype=flow.int64).numpy().max() <= 2
    assert flow.randint_like(a(), 0, 3, device="cpu", dtype=flow.int32).dtype == flow.int32


def test_dtypes_of_indices():
    assert flow.argwhere(flow.tensor([0, 1]), dtype=flow.int32).dtype == flow.int32
    values, inverse = flow.unique(flow.tensor([3, 1, 3]), return_inverse=True, dtype=flow.int32)
    assert (
        values.tolist() == [1, 3] and inverse.dtype == flow.int32 and flow.unique(flow.tensor([1, 1])).tolist() == [1]
    )


def test_typed_constructors():
    assert flow.FloatTensor([1, 2]).dtype == flow.float32 and flow.LongTensor(2, 3).shape == (2, 3)
    assert flow.BoolTensor([1, 0]).tolist() == [True, False] and flow.HalfTensor(flow.Size([2])).shape == (2,)
    assert isinstance(flow.ones(1, dtype=flow.int64), flow.LongTensor) and not isinstance(flow.ones(1), flow.LongTensor)
    assert flow.ones(1).type(flow.IntTensor).dtype == flow.int32 and flow.DoubleTensor().numel() == 0
    assert flow.LongTensor(flow.ones(2)).dtype == flow.int64 and repr(flow.LongTensor) == "<class 'oneflow.LongTensor'>"
    with pytest.raises(TypeError, match="FloatTensor: takes sizes, or data"):
        flow.FloatTensor([1], [2])


def test_settings_are_accepted():
    flow.boxing.nccl.set_fusion_threshold_mbytes(16)
    flow.boxing.nccl.set_fusion_max_ops_num(24)
    flow.boxing.nccl.enable_use_compute_stream(True)
    flow.boxing.enable_fusion(True)
    flow.backends.cudnn.set_reserved_mem_mbytes(500)
    flow.env.init_rdma()
    assert flow.env.rdma_is_initialized() is False
    with pytest.raises(TypeError, match=r"boxing\.nccl\.set_stream_num: takes int"):
        flow.boxing.nccl.set_stream_num("two")


def test_cuda_without_a_device():
    assert not flow.cuda.is_available() and flow.cuda.device_count() == 0
    flow.cuda.manual_seed(3)
    assert flow.initial_seed() == 3
    flow.cuda.manual_seed_all(0)
    flow.cuda.empty_cache()
    flow.cuda.synchronize()
    with pytest.raises(RuntimeError, match="HOLON_SIMULATE=cuda"):
        flow.cuda.current_device()
    kept = flow.ones(1000)
    assert flow.cuda.max_memory_allocated() >= flow.cuda.memory_allocated() >= kept.nbytes


def test_cuda_simulated():
    code = """
import oneflow as flow
print(flow.cuda.is_available(), flow.cuda.device_count(), flow.cuda.current_device(), flow.ones(1).cuda().device)
flow.cuda.set_device("cuda:0")
try: flow.cuda.set_device(1)
except ValueError as e: print(e)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "HOLON_SIMULATE": "cuda"}
    )
    assert done.stdout.splitlines()[0] == "True 1 0 cuda:0" and "rank 0 has device 0" in done.stdout, done.stderr


def test_texts():
    p = flow.placement("cpu", [0])
    assert (
        repr(p) == 'oneflow.placement(type="cpu", ranks=[0])'
        and repr(flow.placement("cpu", [[0]])) == 'oneflow.placement(type="cpu", ranks=[[0]])'
    )
    assert (
        repr(S(0)) == "oneflow.sbp.split(dim=0)"
        and repr((B, flow.sbp.partial_sum)) == "(oneflow.sbp.broadcast, oneflow.sbp.partial_sum)"
    )
    assert repr(flow.ones(4, 8).shape) == "oneflow.Size([4, 8])" and repr(flow.float32) == "oneflow.float32"
    assert repr(flow.tensor([1.0, 2.0])) == "tensor([1., 2.], dtype=oneflow.float32)"
    assert repr(nn.Parameter(flow.ones(1))) == "tensor([1.], dtype=oneflow.float32, requires_grad=True)"
    x = flow.ones(1, 1, placement=p, sbp=B)
    assert repr(x) == (
        'tensor([[1.]], placement=oneflow.placement(type="cpu", ranks=[0]),\n'
        "       sbp=(oneflow.sbp.broadcast,), dtype=oneflow.float32)"
    )
    assert "0., 0., 0.,  ..., 0., 0., 0." in repr(flow.zeros(2000))
    assert flow.ones(1).type() == "oneflow.FloatTensor"


@pytest.mark.parametrize(
    "wrong, error",
    [
        (lambda: flow.ones(2) + flow.ones(2, placement=flow.placement("cpu", [0]), sbp=B), RuntimeError),
        (lambda: flow.ones(2, 3) @ flow.ones(2, 3), RuntimeError),
        (lambda: flow.cat([flow.ones(2, 3), flow.ones(3, 2)]), RuntimeError),
        (lambda: flow.ones(2).view(3), RuntimeError),
        (lambda: nn.Linear(2, 3)(flow.ones(1, 4)), RuntimeError),
        (lambda: flow.ones(2, 3) + flow.ones(4, 5), RuntimeError),
        (lambda: flow.ones(2).to_global(placement=flow.placement("cpu", [0])), RuntimeError),
        (lambda: flow.ones(2, placement=flow.placement("cpu", [0])), RuntimeError),
        (lambda: S(-1), RuntimeError),
        (lambda: S(), TypeError),
        (lambda: flow.ones(2).to_local(), RuntimeError),
        (lambda: flow.ones(2).placement, RuntimeError),
        (lambda: flow.device("tpu"), RuntimeError),
        (lambda: flow.ones(3)[5], IndexError),
        (lambda: flow.ones(2).nope, AttributeError),
        (lambda: nn.Linear(2, 2).load_state_dict({}), RuntimeError),
        (lambda: nn.Module()(1), NotImplementedError),
    ],
)
def test_classes_of_errors(wrong, error):
    with pytest.raises(error):
        wrong()


def test_masks_of_integers():
    mask = flow.tensor([1, 0, 2], dtype=flow.int8)
    assert flow.ones(3).masked_fill(mask, 9.0).tolist() == [9, 1, 9]
    assert flow.where(mask, flow.ones(3), flow.zeros(3)).tolist() == [1, 0, 1] and flow.where(
        mask, 1.0, flow.zeros(3)
    ).tolist() == [1, 0, 1]
    assert flow.arange(3).masked_select(mask).tolist() == [0, 2]


def test_what_a_graph_keeps_of_a_module():
    class Run(nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
            self.block = [self.model[1].to(nn.graph.GraphModule)]
            assert self.model[1].origin is self.model[1] and self.model[1].config is self.block[0]
            self.model[1].config.set_stage(0)

        def build(self, x):
            return self.model(x)

    graph = Run()
    (block,) = graph.block
    assert (
        block.stage_id == 0
        and block.name == "model.1"
        and block.name_prefix == "model."
        and block.type == "MODULE"
        and block.scope == "model.1"
    )
    assert isinstance(graph.model, nn.graph.Proxy) and isinstance(flow.ones(1), nn.graph.GraphTensor)
    assert not hasattr(graph.model, "origin") and not hasattr(graph.model, "config")


def test_a_graphs_classes():
    """Those of a graph and of what it keeps are OneFlow's own; Holon's do not have their names."""
    import holon

    class Run(nn.Graph):
        def build(self, x):
            return x

    config = Run().config
    assert type(config) is nn.graph.GraphConfig and isinstance(Run(), holon.nn.Graph)
    config.pipeline(schedule="zb-h1")
    with pytest.raises(ValueError, match="it is 'distributed_split' or 'non_distributed'"):
        config.set_zero_redundancy_optimizer_mode("x")
    with pytest.raises(NotImplementedError, match="the sbps that a program gives are kept"):
        config.enable_auto_parallel_ignore_user_sbp_config()
    with pytest.raises(AttributeError, match="Did you mean enable_compress_memory?"):
        config.enable_compress_memry()
    linear = nn.Linear(2, 2)
    block = linear.to(nn.graph.GraphModule)
    assert block.type == "MODULE" and block.to(holon.nn.Module) is linear and block.to(nn.graph.GraphModule) is block
    again = pickle.loads(pickle.dumps(linear)).to(nn.graph.GraphModule)
    assert type(again) is nn.graph.GraphModule and again.to(nn.Module).weight.tolist() == linear.weight.tolist()
    for cls, name in (
        (holon.nn.Graph, "trace"),
        (holon.nn.graph.GraphConfig, "enable_compress_memory"),
        (holon.nn.graph.GraphModule, "scope"),
        (holon.nn.graph, "Proxy"),
        (holon.env, "init_rdma"),
    ):
        assert not hasattr(cls, name)


def test_a_module_keeps_its_own_config():
    class Configured(nn.Module):
        def __init__(self):
            super().__init__()
            self.config = {"hidden": 2}
            self.origin = nn.Linear(2, 2)

    class Run(nn.Graph):
        def __init__(self, model):
            super().__init__()
            self.model = model
            self.seen = model.config, [model.origin]

        def build(self, x):
            return self.model.origin(x)

    model = Configured()
    assert Run(model).seen == ({"hidden": 2}, [model.origin])


def test_arguments_as_a_tree():
    from oneflow.nn.graph.util import ArgsTree

    tree = ArgsTree(([1, {"a": 2}], 3), gen_name=True, root_name="input")
    assert [n for n, _ in tree.iter_named_nodes()] == [
        "input",
        "input.0",
        "input.0.0",
        "input.0.1",
        "input.0.1.a",
        "input.1",
    ]
    assert [v.value for _, v in tree.iter_named_nodes() if v.is_leaf()] == [1, 2, 3]
    assert tree.map_leaf(lambda v: v * 2) == ([2, {"a": 4}], 6) and len(list(tree.iter_nodes())) == 6


def test_debug_prints_what_is_compiled(capsys):
    class Run(nn.Graph):
        def build(self, x):
            return x + 1

    graph = Run()
    graph.debug(0)
    graph._compile(flow.ones(2))
    assert "Run, the plan of rank 0" in capsys.readouterr().out and graph.is_compiled and not graph.training
    graph.debug(-1)
    graph(flow.ones(3))
    assert capsys.readouterr().out == ""
    graph.set_grad_scaler(flow.amp.GradScaler())
    with pytest.raises(TypeError, match="takes a GradScaler"):
        graph.set_grad_scaler(1)
    with pytest.raises(AttributeError, match="no protobuf"):
        graph._full_graph_proto  # noqa: B018


def test_placements_by_host_and_with_a_hierarchy():
    def check(rank):
        assert (
            flow.placement("cpu", {0: [0, 1]}) == flow.placement("cpu", [0, 1]) == flow.placement("cpu", {0: range(2)})
        )
        assert flow.placement("cpu", {0: 1}) == flow.placement("cpu", [1])
        assert flow.placement("cpu", {0: [0, 1, 2, 3]}, (2, 2)) == flow.placement("cpu", [[0, 1], [2, 3]])
        assert flow.placement("cpu", [0, 1], hierarchy=(2, 1)).ranks.tolist() == [[0], [1]]
        with pytest.raises(ValueError, match="host 0 has no device 4"):
            flow.placement("cpu", {0: [4]})
        with pytest.raises(TypeError, match="a host must be a number"):
            flow.placement("cpu", {"a": [0]})
        with pytest.raises(TypeError, match="hierarchy must be"):
            flow.placement("cpu", [0, 1], hierarchy="2x1")
        with pytest.raises(ValueError):
            flow.placement("cpu", [0, 1], hierarchy=(3,))

    flow.run_ranks(4, check)


def test_tests_that_ask_for_ranks():
    import unittest

    class Tests(flow.unittest.TestCase):
        @flow.unittest.skip_unless_1n1d()
        def test_here(self):
            self.assertEqual(flow.env.get_world_size(), 1)

        @flow.unittest.skip_unless_1n2d()
        def test_elsewhere(self):
            raise AssertionError

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Tests).run(result)
    assert (result.testsRun, len(result.skipped), len(result.failures)) == (2, 1, 0)
    assert "for 1 hosts with 2 ranks each; here are 1 with 1" in result.skipped[0][1]


def test_tensors_of_a_captured_graph_are_lazy():
    seen = []

    class Run(nn.Graph):
        def build(self, x):
            seen.append((x.is_lazy, x.is_eager))
            return x

    y = Run()(flow.ones(1))
    assert seen == [(True, False)] and (y.is_lazy, y.is_eager) == (False, True)
