"""Copies on a cuda device between strides of all kinds, against the CPU's."""

import itertools

import numpy as np
import pytest

import holon as flow

DTYPES = [flow.uint8, flow.float16, flow.float32, flow.int64]


def values(shape, dtype):
    n = int(np.prod(shape))
    return (flow.arange(n) % 251).to(dtype).reshape(*shape)


def check(x, change, native):
    want = change(x).contiguous()
    on_device = change(x.cuda())
    with native():
        got = on_device.contiguous()
    assert got.is_cuda and got.is_contiguous() and got.dtype == x.dtype
    assert np.array_equal(got.cpu().to(flow.float64).numpy(), want.to(flow.float64).numpy())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(8, 8), (7, 40), (32, 32), (31, 33), (64, 100), (1, 50), (300, 9)])
def test_transposed_matrices(native, shape, dtype):
    check(values(shape, dtype), lambda x: x.t(), native)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_all_orders_of_three_axes(native, order):
    for dtype in DTYPES:
        check(values((9, 34, 17), dtype), lambda x: x.permute(*order), native)


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (0, 3, 1, 2), (3, 0, 2, 1), (1, 0, 3, 2), (2, 3, 0, 1)], ids=str)
def test_four_axes(native, order):
    check(values((3, 10, 5, 12), flow.float32), lambda x: x.permute(*order), native)


def test_windows_steps_and_repeats_of_transposed_matrices(native):
    x = values((40, 70), flow.float32)
    check(x, lambda x: x.t()[3:37, 5:], native)
    check(x, lambda x: x.t()[:, ::2], native)
    check(x, lambda x: x[:, ::3].t(), native)
    check(x, lambda x: x.t().unsqueeze(0).expand(3, 70, 40), native)
    check(x, lambda x: x.unsqueeze(2).expand(40, 70, 9).permute(1, 0, 2), native)


def test_into_transposed_memory(native):
    x, y = values((33, 65), flow.float32), flow.zeros(65, 33).cuda()
    on_device = x.cuda()
    with native():
        y.t().copy_(on_device)
    assert np.array_equal(y.cpu().numpy(), x.numpy().T)
    z = flow.zeros(70, 40).cuda()
    with native():
        z[2:67, 4:37].t().copy_(on_device)
    want = np.zeros((70, 40), np.float32)
    want[2:67, 4:37] = x.numpy().T
    assert np.array_equal(z.cpu().numpy(), want)


def test_other_dtypes_on_the_way(native):
    x = values((20, 30), flow.float32)
    y = flow.zeros(30, 20, dtype=flow.float64).cuda()
    on_device = x.cuda()
    with native():
        y.copy_(on_device.t())
    assert np.array_equal(y.cpu().numpy(), x.numpy().T)
