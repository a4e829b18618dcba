"""Tensors on a cuda device as Python sees them:
made of data, read, printed, shared, saved, loaded and loaded in batches."""

import copy
import pickle

import numpy as np
import pytest

import holon as flow

X = np.arange(24, dtype="f").reshape(2, 3, 4)


def test_made_of_data():
    for data in (X, X.tolist(), flow.tensor(X), flow.tensor(X).cuda(), [flow.tensor(r).cuda() for r in X]):
        t = flow.tensor(data, device="cuda")
        assert t.device.type == "cuda" and t.is_cuda
        np.testing.assert_array_equal(t.cpu().numpy(), X)
    assert flow.tensor(flow.tensor(X).cuda()).device.type == "cuda"  # as in PyTorch
    assert flow.tensor(X, dtype=flow.float64, device="cuda:1").device.index == 1
    assert flow.as_tensor(X, device="cuda").device.type == "cuda"
    assert flow.tensor(X, device="cuda", requires_grad=True).requires_grad
    np.testing.assert_array_equal(flow.tensor(X).cuda().new_tensor([1, 2], device="cuda").tolist(), [1, 2])
    for made in (
        flow.zeros(2, 3, device="cuda"),
        flow.full([2], 3, device="cuda"),
        flow.arange(5, device="cuda"),
        flow.eye(3, device="cuda"),
        flow.tril_indices(3, 3, device="cuda"),
        flow.hann_window(5, device="cuda"),
        flow.linspace(0, 1, 4, device="cuda"),
    ):
        assert made.device.type == "cuda"
        made.tolist()


def test_read_by_the_host():
    t = flow.tensor(X).cuda()
    assert t.tolist() == X.tolist()
    assert t.transpose(0, 2).tolist() == X.transpose(2, 1, 0).tolist()
    assert t[0, 1, 2].item() == 6 and float(t.sum()) == X.sum() and int(t[0, 0, 1]) == 1
    assert bool(flow.tensor([3], device="cuda")) and not flow.tensor(0.0, device="cuda")
    assert [x.tolist() for x in t] == X.tolist() and len(t) == 2
    if t[0, 0, 1] > 2 or t.max() < 3:
        raise AssertionError
    assert f"{t[0, 0, 2]:.1f}" == "2.0"
    assert t.bool().any() and 5 in t


def test_numpy_says_what_to_do():
    t = flow.tensor(X).cuda()
    for read in (lambda: t.numpy(), lambda: np.asarray(t), lambda: np.array(t), lambda: memoryview(t)):
        with pytest.raises(TypeError) as e:
            read()
        assert read.__code__.co_names[-1] == "memoryview" or "cpu()" in str(e.value)
    np.testing.assert_array_equal(t.cpu().numpy(), X)


def test_numpy_copies_where_oneflow_s_does():
    t = flow.tensor(X).cuda()
    flow._C.set_numpy_copies(True)
    try:
        np.testing.assert_array_equal(t.numpy(), X)
    finally:
        flow._C.set_numpy_copies(False)


@pytest.mark.parametrize("shape", [(), (0,), (3, 4), (5, 2000), (1200,), (2, 3, 4, 5), (1001, 7, 9)], ids=str)
@pytest.mark.parametrize(
    "dtype", [flow.float32, flow.int64, flow.boolean if hasattr(flow, "boolean") else flow.bool], ids=str
)
def test_printing(shape, dtype):
    x = flow.tensor(np.random.default_rng(0).standard_normal(shape) * 10).to(dtype)
    for here, there in ((x, x.cuda()), (x.t() if x.ndim == 2 else x, x.cuda().t() if x.ndim == 2 else x.cuda())):
        text = repr(there)
        assert "device='cuda:0'" in text
        assert "".join(text.replace("device='cuda:0'", "").split()).replace(",,", ",") == "".join(repr(here).split())


def test_dlpack():
    t = flow.tensor(X).cuda(1)
    assert tuple(t.__dlpack_device__()) == (2, 1) and tuple(flow.tensor(X).__dlpack_device__()) == (1, 0)
    u = flow.from_dlpack(t)
    assert u.device == t.device and u.data_ptr() == t.data_ptr()
    u += 1
    np.testing.assert_array_equal(t.cpu().numpy(), X + 1)
    v = flow.from_dlpack(t.transpose(0, 1))
    del t, u
    np.testing.assert_array_equal(v.cpu().numpy(), (X + 1).transpose(1, 0, 2))
    with pytest.raises((RuntimeError, BufferError)):  # NumPy's, which reads the CPU's memory only
        np.from_dlpack(v)


def test_copies_and_pickles():
    t = flow.tensor(X, device="cuda", requires_grad=True)
    for c in (copy.deepcopy(t), pickle.loads(pickle.dumps(t)), copy.copy(t)):
        assert c.device == t.device and c.requires_grad
        assert c.tolist() == X.tolist()
    b = flow.tensor(X).to(flow.bfloat16).cuda()
    assert pickle.loads(pickle.dumps(b)).dtype == flow.bfloat16


def test_save_and_load(tmp_path):
    model = flow.nn.Sequential(flow.nn.Linear(3, 4), flow.nn.BatchNorm1d(4)).to("cuda")
    flow.save(model.state_dict(), tmp_path / "model")
    state = flow.load(tmp_path / "model")
    other = flow.nn.Sequential(flow.nn.Linear(3, 4), flow.nn.BatchNorm1d(4))
    other.load_state_dict(state)
    third = flow.nn.Sequential(flow.nn.Linear(3, 4), flow.nn.BatchNorm1d(4)).to("cuda")
    third.load_state_dict(other.state_dict())
    for a, b, c in zip(model.parameters(), other.parameters(), third.parameters()):
        assert a.device.type == "cuda" and b.device.type == "cpu" and c.device.type == "cuda"
        assert a.tolist() == b.tolist() == c.tolist()
    onto = flow.load(tmp_path / "model", map_location="cuda")
    assert all(t.device.type == "cuda" for t in onto.values())
    flow.save({"x": flow.tensor(X).cuda().transpose(0, 1)}, tmp_path / "view")
    assert flow.load(tmp_path / "view")["x"].tolist() == X.transpose(1, 0, 2).tolist()


def test_global_tensors():
    p = flow.placement("cuda", [0])
    t = flow.tensor(X, placement=p, sbp=flow.sbp.split(0))
    assert t.tolist() == X.tolist()
    np.testing.assert_array_equal(t.numpy(), X)  # gathered in any case, so it comes here
    np.testing.assert_array_equal(t.to_local().cpu().numpy(), X)
    g = flow.tensor(X).cuda().to_global(p, flow.sbp.broadcast)
    assert g.sum().item() == X.sum()
    repr(g)
    x = flow.ones(2, 3, placement=p, sbp=flow.sbp.broadcast, requires_grad=True)
    (x * x).sum().backward()
    assert x.grad.tolist() == [[2.0] * 3] * 2
    flow.nn.utils.clip_grad_norm_([x], 1.0)
    flow.optim.LAMB([x], lr=0.1).step()


def test_data_loader_gives_the_cpus_batches():
    for device in ("cpu", "cuda"):
        data = flow.utils.data.TensorDataset(flow.tensor(X.reshape(6, 4)).to(device), flow.arange(6, device=device))
        batches = list(flow.utils.data.DataLoader(data, batch_size=4))
        assert [len(b[0]) for b in batches] == [4, 2]
        assert flow.cat([b[0].cpu() for b in batches]).tolist() == X.reshape(6, 4).tolist()
        assert flow.cat([b[1].cpu() for b in batches]).tolist() == list(range(6))


def test_ops_that_look_at_values():
    t = flow.tensor([2, 0, 1], device="cuda")
    assert flow.repeat_interleave(flow.tensor([5, 6, 7], device="cuda"), t).tolist() == [5, 5, 7]
    w = flow.empty(3, 5, device="cuda")
    flow.nn.init.orthogonal_(w)
    np.testing.assert_allclose((w @ w.t()).cpu().numpy(), np.eye(3), atol=1e-6)


class Double(flow.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x * 2

    @staticmethod
    def backward(ctx, dy):
        return dy * 2, None


def test_functions_of_python():
    x, y = (flow.ones(3, device="cuda", requires_grad=True) for _ in range(2))
    Double.apply(x, y).sum().backward()
    assert x.grad.tolist() == [2.0] * 3 and x.grad.device.type == "cuda"


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "uint8", "int64"])
@pytest.mark.parametrize("to", ["float32", "bfloat16", "int64"])
def test_copies_between_layouts(native, kind, to):
    """Rows of packs in another order, rows that no pack begins at, one element for all of a row,
    and what is left at the end."""
    x = (flow.arange(2 * 3 * 5 * 32) % 101).reshape(2, 3, 5, 32).to(getattr(flow, kind))
    views = [
        lambda t: t.transpose(1, 2),
        lambda t: t[..., 1:30],
        lambda t: t[..., 8:24],
        lambda t: t.permute(3, 0, 1, 2),
        lambda t: t[:1, :1, :1, :1].expand(2, 3, 5, 32),
        lambda t: t[..., :1].expand(2, 3, 5, 32),
        lambda t: t.reshape(-1)[:957],
        lambda t: t.reshape(-1)[3:],
    ]
    there = x.cuda()
    for view in views:
        want = view(x).to(getattr(flow, to)).contiguous()
        with native():
            got = view(there).to(getattr(flow, to)).contiguous()
        assert got.shape == want.shape and (got.cpu() == want).all().item()
        written = flow.zeros(*there.shape, dtype=getattr(flow, to)).cuda()
        if want.ndim == 4 and want.shape == there.shape:
            with native():
                written.transpose(0, 1).copy_(view(there).transpose(0, 1))
            assert (written.cpu() == want).all().item()
