"""Tensors on toy devices: what runs there, what runs on the host and is counted, and what is refused."""

import numpy as np
import pytest

import holon as flow


def staged(call):
    before = dict(flow._C.host_runs())
    result = call()
    return result, {k: n - before.get(k, 0) for k, n in flow._C.host_runs().items() if n > before.get(k, 0)}


def test_tensors_say_where_they_are():
    x = flow.arange(6, dtype=flow.float32).reshape(2, 3).to("toy")
    assert str(x.device) == "toy:0" and not x.is_cuda and x.type() == "holon.toy.FloatTensor"
    assert "device='toy:0'" in repr(x) and "[0., 1., 2.]" in repr(x)
    assert x.cpu().device.type == "cpu" and x.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert flow.ones(2, device="toy:3").device == flow.device("toy:3")
    with pytest.raises(RuntimeError, match=r"this host has 4 toy device\(s\)"):
        flow.ones(2, device="toy:4")
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        x + flow.ones(2, 3)
    assert (x + flow.tensor(1.0)).device == x.device  # a number may be the CPU's


def test_kernels_run_there_or_on_the_host():
    x = flow.tensor(np.linspace(-3, 3, 12, dtype="float32").reshape(3, 4))
    there = x.to("toy")
    assert {"binary", "matmul", "softmax"} <= set(flow._C.device_kernels("toy"))
    y, runs = staged(lambda: flow.softmax(flow.exp(there * 2) @ there.T + 1, 1).sum())
    assert not runs, runs
    np.testing.assert_array_equal(y.cpu().numpy(), flow.softmax(flow.exp(x * 2) @ x.T + 1, 1).sum().numpy())
    (values, order), runs = staged(lambda: flow.sort(there, 1, descending=True))
    assert runs == {"sort": 1} and order.device == there.device
    np.testing.assert_array_equal(values.cpu().numpy(), flow.sort(x, 1, descending=True)[0].numpy())


def test_gradients():
    def grads(device):
        w = flow.tensor(np.linspace(-1, 1, 20, dtype="float32").reshape(4, 5), device=device, requires_grad=True)
        x = flow.tensor(np.linspace(0, 2, 12, dtype="float32").reshape(3, 4), device=device)
        flow.nn.functional.cross_entropy(x @ w, flow.tensor([1, 0, 4], device=device)).backward()
        assert w.grad.device == flow.device(device)
        return w.grad.cpu().numpy()

    np.testing.assert_array_equal(grads("toy"), grads("cpu"))


def test_what_only_cuda_has():
    x = flow.ones(2, device="toy")
    with pytest.raises(RuntimeError, match="memory of the CPU and of cuda devices can be shared"):
        np.from_dlpack(x)
    if not flow.cuda.is_available():
        with pytest.raises(RuntimeError, match="pin_memory"):
            flow.ones(2).pin_memory()


def test_memory_is_counted():
    device = flow.device("toy:2")
    before = flow._C.device_memory_stats(device)["in_use_bytes"]
    x = flow.ones(1000, device=device)
    assert flow._C.device_memory_stats(device)["in_use_bytes"] == before + 4096
    flow._C.synchronize_device(x.device)
    del x
    assert flow._C.device_memory_stats(device)["in_use_bytes"] == before
    with pytest.raises(ValueError, match="cpu has no separate memory"):
        flow._C.synchronize_device(flow.device("cpu"))
