"""Devices as programs see them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import holon as flow

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import ranks  # noqa: E402


def test_devices():
    assert flow.cuda.is_available() and flow.cuda.device_count() >= 1
    x = flow.ones(2, 3, device="cuda")
    assert x.is_cuda and x.device.type == "cuda" and x.device.index == 0
    assert flow.cuda.current_device() == 0
    name, major, minor, total, processors = flow.cuda.get_device_properties(0)
    assert name and major >= 8 and total > 0 and processors > 0


def test_copies_there_and_back():
    x = flow.arange(24, dtype=flow.float32).reshape(4, 6)
    for given in (x, x.t(), x[1:3, ::2], x[:0], x[0, 0]):
        there = given.cuda()
        assert there.is_cuda and there.shape == given.shape
        assert there.cpu().tolist() == given.tolist()


def test_to_keeps_what_is_there():
    x = flow.ones(2, device="cuda")
    assert x.cuda() is x and x.to("cuda:0") is x
    assert x.cpu().cpu().device.type == "cpu"


def test_gradients_come_back():
    x = flow.ones(3, requires_grad=True)
    (x.cuda() * 2).sum().backward()
    assert x.grad.device.type == "cpu" and x.grad.tolist() == [2.0, 2.0, 2.0]


def test_a_device_that_is_not_there():
    with pytest.raises(RuntimeError, match=f'device "cuda:99": this host has {flow.cuda.device_count()} cuda device'):
        flow.ones(2, device="cuda:99")


def test_devices_are_not_mixed():
    x = flow.ones(2, 3, device="cuda")
    with pytest.raises(RuntimeError, match=r"add: Expected all tensors to be on the same device.*cuda:0 and cpu.*\.to"):
        x + flow.ones(3)
    assert (x + flow.tensor(2.0)).cpu().tolist() == [[3.0] * 3] * 2  # a number may lie on the CPU


def test_global_tensors():
    p = flow.placement("cuda", [0])
    x = flow.randn(4, 5, placement=p, sbp=flow.sbp.split(0))
    assert x.placement.type == "cuda" and x.to_local().is_cuda
    flow.manual_seed(3)
    a = flow.randn(4, 5, placement=p, sbp=flow.sbp.split(0))
    flow.manual_seed(3)
    b = flow.randn(4, 5, placement=flow.placement("cpu", [0]), sbp=flow.sbp.split(0))
    assert a.to_local().cpu().tolist() == b.to_local().tolist()


def test_every_form_is_of_a_kernel():
    assert {"copy", "fill"} <= set(flow._C.device_kernels())


def test_events_take_times():
    x = flow.ones(64, 64, device="cuda")
    begin, end = flow.cuda.Event(enable_timing=True), flow.cuda.Event(enable_timing=True)
    assert begin.query()  # nothing to wait for
    begin.record()
    for _ in range(3):
        x = x @ x * 0.01
    end.record()
    end.synchronize()
    assert begin.query() and end.query()
    assert 0 < begin.elapsed_time(end) < 60_000 and end.elapsed_time(begin) < 0


def test_events_without_times():
    plain, timed, unused = flow.cuda.Event(), flow.cuda.Event(enable_timing=True), flow.cuda.Event(enable_timing=True)
    plain.record(), timed.record(), timed.synchronize(), plain.synchronize()
    with pytest.raises(RuntimeError, match="the first takes no times. Make both with enable_timing"):
        plain.elapsed_time(timed)
    with pytest.raises(RuntimeError, match="the second was never recorded"):
        timed.elapsed_time(unused)


def test_an_events_wait_raises_what_was_found_wrong():
    event = flow.cuda.Event()
    with pytest.raises(IndexError, match="index 7"):
        flow.embedding(flow.ones(4, 2, device="cuda"), flow.tensor([7], device="cuda"))
        event.record()
        event.synchronize()


@pytest.mark.skipif("emulated" not in os.environ.get("HOLON_CUDA_LIBRARY", ""), reason="the driver is the machine's")
@pytest.mark.parametrize(
    "driver, found", [(12080, "the driver here knows CUDA up to 12.8"), (0, "there is no driver here")]
)
def test_a_driver_that_is_too_old(driver, found):
    done = subprocess.run(
        [sys.executable, "-c", "import holon; holon.ones(2, device='cuda')"],
        env=ranks.environment(EMULATED_DRIVER=driver),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert f"built with CUDA 13.0, which needs driver 580 or newer; {found}. Install a newer driver" in done.stderr
