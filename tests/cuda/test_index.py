"""Reading and writing by index: exactly what the CPU gives, also in which of several writes to a place wins."""

import numpy as np
import pytest

import holon as flow

DTYPES = [
    flow.bool,
    flow.uint8,
    flow.int8,
    flow.int32,
    flow.int64,
    flow.float16,
    flow.bfloat16,
    flow.float32,
    flow.float64,
]
ids = str
random = np.random.default_rng(0)


def values(*shape, dtype=flow.float32):
    a = random.integers(0, 7, shape) if dtype in (flow.uint8, flow.bool) else random.integers(-40, 41, shape) / 8
    return flow.tensor(a.astype("float64")).to(dtype)


def places(n, *shape, dtype=flow.int64):
    return flow.tensor(random.integers(0, n, shape)).to(dtype)


def same(cpu, cuda):
    assert (cuda.shape, cuda.dtype, cuda.device.type) == (cpu.shape, cpu.dtype, "cuda")
    a, b = (t.detach().to("cpu").to(flow.float64).numpy() for t in (cpu, cuda))
    assert np.array_equal(a, b)


def both(f, *tensors):
    """f on the CPU, and with its tensors on the device."""
    same(f(*tensors), f(*(t.cuda() for t in tensors)))


@pytest.mark.parametrize("dtype", DTYPES, ids=ids)
@pytest.mark.parametrize("width", [1, 3, 8, 64])
def test_rows(dtype, width, native):
    table, index = values(11, width, dtype=dtype), places(11, 4, 5)
    x, y, i, j = table, table.cuda(), index, index.cuda()
    with native():
        a, b = flow.embedding(y, j), flow.index_select(y, 0, j[0])
        c, d = flow.embedding(y, j.to(flow.int32).transpose(0, 1)), y[j]
    same(flow.embedding(x, i), a)
    same(flow.index_select(x, 0, i[0]), b)
    same(flow.embedding(x, i.transpose(0, 1)), c)
    same(x[i], d)


@pytest.mark.parametrize("dtype", [flow.bool, flow.float16, flow.int32, flow.float64], ids=ids)
def test_along_axes(dtype):
    x = values(5, 7, 6, dtype=dtype)
    for axis in range(3):
        both(lambda x, i: flow.index_select(x, axis, i), x, places(x.shape[axis], 9))
        both(lambda x, i: flow.index_select(x.transpose(0, 2), 2 - axis, i), x, places(x.shape[axis], 2))
        index = places(x.shape[axis], *(9 if a == axis else n - 1 for a, n in enumerate(x.shape)))
        both(lambda x, i: flow.gather(x, axis, i), x, index)
        both(
            lambda x, i: flow.gather(x.transpose(0, 1), axis, i.transpose(0, 1)),
            x.transpose(0, 1),
            index.transpose(0, 1),
        )
        both(lambda x, i: flow.gather(x[::2], axis, i[:3] * 0), x, index)


@pytest.mark.parametrize("dtype", DTYPES, ids=ids)
def test_writing(dtype, native):
    x = values(5, 7, 6, dtype=dtype)
    for axis in range(3):
        index = places(x.shape[axis], *(20 if a == axis else n - 1 for a, n in enumerate(x.shape)))
        src = values(*index.shape, dtype=dtype)
        with native():
            flow.scatter(x.cuda(), axis, index.cuda(), src.cuda())
        both(lambda x, i, s: flow.scatter(x, axis, i, s), x, index, src)
        both(lambda x, i: flow.scatter(x, axis, i, 1), x, index)
        both(
            lambda x, i, s: flow.scatter(x.transpose(0, 1), axis, i.transpose(0, 1), s.transpose(0, 1)),
            x.transpose(0, 1),
            index.transpose(0, 1),
            src.transpose(0, 1),
        )
        if dtype == flow.bool:
            continue
        both(lambda x, i, s: flow.scatter_add(x, axis, i, s), x, index, src)
        both(lambda x, i, s: flow.scatter(x, axis, i, s, reduce="multiply"), x, index[:2], src[:2])
        both(lambda x, i, s: flow.index_add(x, axis, i, s), x, places(2, x.shape[axis]), values(*x.shape, dtype=dtype))


def test_many_writes(native):
    """More entries than one block puts in order; many of them to one place."""
    index, src = places(3000, 9000), flow.randn(9000)
    index[:3000] = 7
    x = flow.randn(3000)
    with native():
        got = (
            flow.scatter_add(x.cuda(), 0, index.cuda(), src.cuda()),
            flow.scatter(x.cuda(), 0, index.cuda(), src.cuda()),
        )
    same(flow.scatter_add(x, 0, index, src), got[0])
    same(flow.scatter(x, 0, index, src), got[1])


@pytest.mark.parametrize("dtype", [flow.bool, flow.float32, flow.bfloat16, flow.int64], ids=ids)
def test_several_indices(dtype):
    x, a, b, c = values(5, 7, 8, dtype=dtype), places(5, 4), places(7, 3, 1), places(8, 4)
    both(lambda x, a, b: x[a, b], x, a, b)
    both(lambda x, a, b: x[a - 5, b], x, a, b)
    both(lambda x, a, b, c: x[a, b, c], x, a, b, c)
    both(lambda x, b: x[:, b], x, b)
    both(lambda x, a, c: x[a, :, c], x, a, c)
    both(lambda x, b, c: x[1:3, b, c], x, b, c)

    def assigned(x, v, *index):
        y = x.clone()
        y[index] = v
        return y

    v = values(4, 8, dtype=dtype)
    both(assigned, x, v[:1], a)
    both(assigned, x, v, a, b)
    both(assigned, x, v[0, :4], a, b, c)
    both(lambda x, v: assigned(x, v[0, 0], slice(None), slice(1, 6, 2)), x, v)
    both(lambda x, v, m: assigned(x, v[1, 1], m), x, v, values(5, 7, dtype=flow.bool))
    both(lambda x, m: assigned(x, 1, m), x, values(5, 7, 8, dtype=flow.bool))


def test_indices_on_the_cpu():
    """An index may lie on the CPU beside a tensor on the device."""
    x, i = values(5, 6), places(5, 3)
    same(x[i], x.cuda()[i])
    same(x[[0, 2]], x.cuda()[[0, 2]])
    same(x[x > 0], x.cuda()[x > 0])


@pytest.mark.parametrize("dtype", [flow.float32, flow.float16, flow.bfloat16, flow.float64], ids=ids)
def test_gradients(dtype):
    table, index = values(30, 16, dtype=dtype), places(30, 6, 9)
    index[0] = 4
    dy = values(6, 9, 16, dtype=dtype)

    def gradient(f):
        def of(x, *others):
            x = x.detach().clone().requires_grad_()
            f(x, *others).backward()
            return x.grad

        return of

    both(gradient(lambda w, i, dy: (flow.embedding(w, i) * dy).sum()), table, index, dy)
    both(gradient(lambda w, i, dy: (flow.embedding(w, i, padding_idx=4) * dy).sum()), table, index, dy)
    both(gradient(lambda w, i, dy: (w[i] * dy).sum()), table, index, dy)
    both(gradient(lambda w, i, dy: (w[i[0], i[1] % 16] * dy[0, :, 0]).sum()), table, index, dy)
    both(gradient(lambda w, i, dy: (flow.index_select(w, 0, i[1]) * dy[0]).sum()), table, index, dy)
    both(gradient(lambda w, i, dy: (flow.gather(w, 0, i) * dy[:, :, 0]).sum()), table, index, dy)


def test_nothing():
    x = flow.ones(3, 4)
    none = flow.zeros(0, dtype=flow.int64)
    both(flow.embedding, x, none)
    both(lambda x, i: flow.index_select(x, 1, i), x, none)
    both(lambda x, i: x[i], x, none)
    both(lambda x, i: flow.index_add(x, 0, i, x[:0]), x, none)
    both(lambda x, i: flow.scatter(x, 0, i.reshape(0, 4), x[:0]), x, none)
    both(lambda x, i: flow.gather(x, 0, i), flow.tensor(3.0), flow.tensor(0))


WRONG = [
    lambda x, i: flow.embedding(x, i),
    lambda x, i: flow.index_select(x, 0, i),
    lambda x, i: flow.gather(x, 0, i.reshape(3, 1)),
    lambda x, i: flow.scatter(x, 0, i.reshape(3, 1), x[:3, :1]),
    lambda x, i: flow.index_add(x, 0, i, x[:3]),
    lambda x, i: x[i],
    lambda x, i: x[i, i * 0],
]


@pytest.mark.parametrize("f", WRONG)
@pytest.mark.parametrize("bad", [7, -8])
def test_wrong_indices(f, bad):
    x, index = flow.arange(20.0).reshape(5, 4), flow.tensor([1, bad, 2])
    with pytest.raises(IndexError) as on_cpu:
        f(x, index)
    with pytest.raises(IndexError) as on_device:
        f(x.cuda(), index.cuda())
        flow.cuda.synchronize()
    assert f"index {bad}" in str(on_cpu.value)
    assert f"index {bad}" in str(on_device.value)
    assert "position 1" in str(on_device.value)
    # The error is gone with it.
    same(x, x.cuda() + 0)


def test_gradients_add_up():
    table, index = values(30, 16), places(30, 50)

    def twice(x, i):
        x = x.detach().clone().requires_grad_()
        for _ in range(2):
            flow.embedding(x, i).sum().backward()
        return x.grad

    both(twice, table, index)


def test_a_table_on_several_ranks():
    """Each rank reads and writes the rows that it holds."""
    table, index = values(10, 8), places(10, 6)
    leaf = table.clone().requires_grad_()
    (flow.embedding(leaf, index) * 2).sum().backward()
    expected = flow.embedding(table, index).numpy(), leaf.grad.numpy()

    def rank(_):
        where = flow.placement("cuda", ranks=[0, 1])
        w = table.to_global(where, flow.sbp.broadcast).to_global(sbp=flow.sbp.split(0)).detach().requires_grad_()
        i = index.to_global(where, flow.sbp.broadcast)
        y = flow.embedding(w, i)
        (y * 2).sum().backward()
        z = flow.index_select(w.detach(), 0, i)
        return [t.to_global(sbp=flow.sbp.broadcast).to_local().detach().to("cpu").numpy() for t in (y, w.grad, z)]

    for y, grad, z in flow.run_ranks(2, rank):
        assert np.array_equal(y, expected[0]) and np.array_equal(z, expected[0])
        assert np.array_equal(grad, expected[1])
