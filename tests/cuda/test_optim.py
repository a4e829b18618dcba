"""Optimizers, clipping and loss scaling on a cuda device follow the CPU's numbers."""

import ctypes
import os
import sys
from pathlib import Path

import numpy as np
import pytest

import holon as flow

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from harness import ranks  # noqa: E402

EMULATED = "emulated" in os.environ.get("HOLON_CUDA_LIBRARY", "")

SHAPES = [(7,), (40, 130), (), (0, 3), (5003,), (3, 4, 5)]
RULES = {
    "sgd": lambda p, **k: flow.optim.SGD(p, lr=0.1, **k),
    "sgd momentum": lambda p, **k: flow.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01, **k),
    "sgd nesterov": lambda p, **k: flow.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, maximize=True, **k),
    "adam": lambda p, **k: flow.optim.Adam(p, lr=0.01, weight_decay=0.1, **k),
    "adamw": lambda p, **k: flow.optim.AdamW(p, lr=0.01, weight_decay=0.1, **k),
    "amsgrad": lambda p, **k: flow.optim.Adam(p, lr=0.01, amsgrad=True, **k),
    "adagrad": lambda p, **k: flow.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.5, lr_decay=0.1, **k),
    "adadelta": lambda p, **k: flow.optim.Adadelta(p, lr=1.0, **k),
    "rmsprop": lambda p, **k: flow.optim.RMSprop(p, lr=0.01, **k),
    "rmsprop momentum": lambda p, **k: flow.optim.RMSprop(p, lr=0.01, momentum=0.5, **k),
    "rmsprop centered": lambda p, **k: flow.optim.RMSprop(p, lr=0.01, centered=True, **k),
    "rmsprop both": lambda p, **k: flow.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5, **k),
    "lamb": lambda p, **k: flow.optim.LAMB(p, lr=0.01, weight_decay=0.1, **k),
    "lars": lambda p, **k: flow.optim.LARS(p, lr=0.1, weight_decay=0.1, **k),
}


def parameters(dtype, device, shapes=SHAPES, count=1):
    rng = np.random.default_rng(3)
    values = [rng.standard_normal(s) for s in shapes * count]
    return [flow.tensor(v, dtype=dtype).to(device).requires_grad_() for v in values]


def set_grads(params, step, dtype):
    rng = np.random.default_rng(100 + step)
    for p in params:
        g = rng.standard_normal(tuple(p.shape))
        p.grad = flow.tensor(g, dtype=dtype).to(p.device)


def close(a, b, dtype):
    tol = {flow.float64: 1e-12, flow.float32: 2e-6, flow.float16: 2e-3, flow.bfloat16: 1.6e-2}[dtype]
    np.testing.assert_allclose(
        a.detach().cpu().to(flow.float64).numpy(), b.detach().to(flow.float64).numpy(), rtol=tol, atol=tol
    )


def trajectory(make, dtype, native, steps=3, shapes=SHAPES, count=1, **options):
    here, there = parameters(dtype, "cpu", shapes, count), parameters(dtype, "cuda", shapes, count)
    a, b = make(here, **options), make(there, **options)
    for step in range(steps):
        set_grads(here, step, dtype)
        set_grads(there, step, dtype)
        a.step()
        with native():
            b.step()
    for x, y in zip(here, there):
        assert y.device.type == "cuda"
        close(y, x, dtype)


@pytest.mark.parametrize("rule", RULES)
def test_rules(rule, native):
    trajectory(RULES[rule], flow.float32, native)


@pytest.mark.parametrize("dtype", [flow.float64, flow.bfloat16, flow.float16], ids=str)
@pytest.mark.parametrize("rule", ["sgd momentum", "amsgrad", "lamb", "lars", "rmsprop both", "adadelta", "adagrad"])
def test_dtypes(rule, dtype, native):
    trajectory(RULES[rule], dtype, native, steps=2, shapes=[(33,), (5000,), (4, 8)])


@pytest.mark.parametrize("dtype", [flow.bfloat16, flow.float16], ids=str)
@pytest.mark.parametrize("rule", ["sgd", "adam", "lamb"])
def test_master_copies(rule, dtype, native):
    trajectory(RULES[rule], dtype, native, master_weights=True)


def test_more_tensors_than_a_launch_takes(native):
    trajectory(RULES["adam"], flow.float32, native, steps=2, shapes=[(5,), (2, 3), (4100,)], count=40)
    trajectory(RULES["lamb"], flow.float32, native, steps=1, shapes=[(5,), (2, 3), (4100,)], count=40)


def test_strided_parameters_and_gradients(native):
    rng = np.random.default_rng(0)
    p, g = rng.standard_normal((12, 10)).astype("f"), rng.standard_normal((10, 12)).astype("f")
    for view in (lambda t: t.t().detach(), lambda t: t[:, ::2].detach(), lambda t: t[1:, 1:].detach()):
        ends = []
        for device in ("cpu", "cuda"):
            whole = flow.tensor(p).to(device)
            x = view(whole).requires_grad_()
            x.grad = (
                flow.tensor(g).to(device).t()[: x.shape[0], : x.shape[1]]
                if x.shape[0] == 12 or x.shape[0] == 11
                else flow.tensor(g).to(device)[: x.shape[0], : x.shape[1]]
            )
            adam = flow.optim.Adam([x], lr=0.1)
            if device == "cuda":
                with native():
                    adam.step()
            else:
                adam.step()
            ends.append(whole)
        close(ends[1], ends[0], flow.float32)


def test_parameters_on_two_devices():
    ends = []
    for devices in (["cpu", "cpu"], ["cpu", "cuda"]):
        params = [flow.tensor(np.arange(5, dtype="f") + i).to(d).requires_grad_() for i, d in enumerate(devices)]
        sgd = flow.optim.LARS(params, lr=0.1)
        for p in params:
            p.grad = flow.ones_like(p) * 2
        flow.nn.utils.clip_grad_norm_(params, 1.0)
        sgd.step()
        ends.append(params)
    for a, b in zip(*ends):
        close(b, a, flow.float32)


@pytest.mark.parametrize("norm_type", [2.0, 1.0, 3.0, 0.0, float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [flow.float32, flow.float64, flow.bfloat16], ids=str)
def test_clip_grad_norm(norm_type, dtype, native):
    shapes = [(7,), (40, 130), (20000,)]
    here, there = parameters(dtype, "cpu", shapes), parameters(dtype, "cuda", shapes)
    set_grads(here, 0, dtype)
    set_grads(there, 0, dtype)
    a = flow.nn.utils.clip_grad_norm_(here, 1e-9 if norm_type < 0 else 0.5, norm_type)
    with native():
        b = flow.nn.utils.clip_grad_norm_(there, 1e-9 if norm_type < 0 else 0.5, norm_type)
    np.testing.assert_allclose(float(b), float(a), rtol=1e-6)
    for x, y in zip(here, there):
        close(y.grad, x.grad, dtype)


@pytest.mark.parametrize("norm_type", [2.0, 1.0, 0.0, float("inf")])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_clip_grad_norm_of_what_is_not_finite(bad, norm_type):
    g = np.ones(5000, "f")
    g[4321] = bad
    found = []
    for device in ("cpu", "cuda"):
        p, q = (flow.zeros(5000, device=device, requires_grad=True) for _ in range(2))
        p.grad, q.grad = flow.tensor(g).to(device), flow.ones(5000, device=device)
        norm = flow.nn.utils.clip_grad_norm_([p, q], 1.0, norm_type)
        assert norm.device.type == device
        found.append((norm.cpu().numpy(), p.grad.cpu().numpy(), q.grad.cpu().numpy()))
    assert np.isfinite(found[0][0]) == (norm_type == 0)
    for here, there in zip(*found):
        np.testing.assert_array_equal(here, there)
    if norm_type != 0:
        with pytest.raises(RuntimeError, match="is (nan|inf).*not finite"):
            p.grad = flow.tensor(g).to("cuda")
            flow.nn.utils.clip_grad_norm_([p], 1.0, norm_type, error_if_nonfinite=True)


def test_clipping_leaves_what_is_below_the_limit_and_what_others_hold():
    p, q = (flow.zeros(300, device="cuda", requires_grad=True) for _ in range(2))
    held = p.grad = flow.ones(300, device="cuda")
    q.grad = p.grad
    flow.nn.utils.clip_grad_norm_([p, q], 1e3)
    np.testing.assert_array_equal(p.grad.cpu().numpy(), 1)
    norm = flow.nn.utils.clip_grad_norm_([p, q], 1.0)
    assert abs(float(norm) - 600**0.5) < 1e-4
    for tensor in (p, q):
        np.testing.assert_allclose(tensor.grad.cpu().numpy(), 600**-0.5, rtol=1e-5)
    np.testing.assert_array_equal(held.cpu().numpy(), 1)


def waits():
    if not EMULATED:
        pytest.skip("the emulator counts waits")
    return ctypes.CDLL(os.environ["HOLON_CUDA_LIBRARY"]).emulated_wait_count()


@pytest.mark.parametrize("rule", ["adamw", "lamb", "lars"])
def test_a_clipped_step_waits_for_nothing(rule, native):
    params = parameters(flow.float32, "cuda")
    optimizer = RULES[rule](params)
    for step in range(3):
        set_grads(params, step, flow.float32)
        before = waits()
        with native():
            norms = [flow.nn.utils.clip_grad_norm_(params, 0.5, p) for p in (2.0, 1.0, float("inf"))]
            optimizer.step()
        assert waits() == before
        assert all(norm.device.type == "cuda" for norm in norms)
        assert float(norms[0]) > 0 and waits() > before  # it is read when it is asked for


def test_clipping_of_global_gradients():
    """On two ranks, of every layout; in steps of a graph, too."""
    if not EMULATED and flow.cuda.device_count() < 2:
        pytest.skip("2 cuda devices are needed")
    done = ranks.launch(HERE / "programs/clip_parallel.py", 2, timeout=100, EMULATED_DEVICES=4, EMULATED_STRICT=0)
    assert done.returncode == 0 and done.stdout.count("clipped alike") == 2, done.stdout + done.stderr


def test_clip_grad_value(native):
    here, there = parameters(flow.float32, "cpu"), parameters(flow.float32, "cuda")
    set_grads(here, 0, flow.float32)
    set_grads(there, 0, flow.float32)
    here[0].grad[2] = there[0].grad[2] = float("nan")
    flow.nn.utils.clip_grad_value_(here, 0.5)
    with native():
        flow.nn.utils.clip_grad_value_(there, 0.5)
    for x, y in zip(here, there):
        close(y.grad, x.grad, flow.float32)


def test_grad_scaler():
    for bad in (False, True):
        ends = []
        for device in ("cpu", "cuda"):
            params = parameters(flow.float32, device, [(7,), (40, 130)])
            sgd = flow.optim.SGD(params, lr=0.1)
            scaler = flow.amp.GradScaler(init_scale=8.0, growth_interval=1)
            loss = sum((p * p).sum() for p in params)
            scaler.scale(loss).backward()
            if bad:
                params[1].grad[3, 4] = float("inf")
            scaler.step(sgd)
            scaler.update()
            ends.append((params, scaler.get_scale()))
        assert ends[0][1] == ends[1][1]
        for x, y in zip(ends[0][0], ends[1][0]):
            close(y, x, flow.float32)


def test_state_dict_moves_between_devices():
    a = parameters(flow.float32, "cuda", [(6, 7)])
    adam = flow.optim.Adam(a, lr=0.1)
    set_grads(a, 0, flow.float32)
    adam.step()
    b = [a[0].detach().cpu().requires_grad_()]
    other = flow.optim.Adam(b, lr=0.1)
    other.load_state_dict(adam.state_dict())
    c = [a[0].detach().clone().requires_grad_()]
    third = flow.optim.Adam(c, lr=0.1)
    third.load_state_dict(other.state_dict())
    for params, opt in ((a, adam), (b, other), (c, third)):
        set_grads(params, 1, flow.float32)
        opt.step()
    close(a[0], b[0], flow.float32)
    close(c[0], b[0], flow.float32)
