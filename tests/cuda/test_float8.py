"""Rounding to float8 and products of such numbers on a cuda device against the CPU's."""

import contextlib

import numpy as np
import pytest

import holon as flow

FLOAT8 = [flow.float8_e4m3fn, flow.float8_e5m2]
FLOATS = [flow.float32, flow.float64, flow.float16, flow.bfloat16]


def numbers(shape, seed=0):
    """Of all sizes, with zeros and what is too large or no number."""
    random = np.random.default_rng([seed, *shape])
    x = random.standard_normal(shape) * np.exp2(random.integers(-24, 20, shape))
    x.flat[::11] = 0
    return x.astype(np.float32)


def bits(t):
    return t.cpu().view(flow.uint8).numpy()


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
@pytest.mark.parametrize("wide", FLOATS, ids=str)
def test_quantize(native, dtype, wide):
    for shape in ((5,), (33, 70), (0, 3)):
        x = flow.tensor(numbers(shape)).to(wide)
        if x.numel():
            x.reshape(-1)[:3].copy_(flow.tensor([np.nan, np.inf, -np.inf]))
        for scale in (1.0, 2.0**9, 2.0**-7):
            scale = flow.tensor(scale)
            wanted = flow.quantize_float8(x, scale, dtype)
            with native():
                found = flow.quantize_float8(x.cuda(), scale.cuda(), dtype)
            assert found.is_cuda and found.dtype == dtype
            np.testing.assert_array_equal(bits(found) & 0x7F, bits(wanted) & 0x7F)  # the sign of NaN is free
            finite = np.isfinite(wanted.numpy())
            np.testing.assert_array_equal(bits(found)[finite], bits(wanted)[finite])
    x = flow.tensor(numbers((24, 18))).to(wide)
    wanted = flow.quantize_float8(x[::2].t(), flow.tensor(2.0), dtype)
    with native():
        found = flow.quantize_float8(x.cuda()[::2].t(), flow.tensor(2.0).cuda(), dtype)
    np.testing.assert_array_equal(bits(found), bits(wanted))


@pytest.mark.parametrize("dtypes", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("result", [flow.float32, flow.bfloat16, flow.float16], ids=str)
@pytest.mark.parametrize("m, k, n", [(16, 16, 16), (48, 64, 32), (17, 16, 16), (16, 5, 7)])
def test_scaled_mm(native, dtypes, result, m, k, n):
    random = np.random.default_rng(3)
    a = flow.tensor(random.standard_normal((m, k)).astype(np.float32)).to(FLOAT8[dtypes[0]])
    b = flow.tensor(random.standard_normal((k, n)).astype(np.float32)).to(FLOAT8[dtypes[1]])
    scales = flow.tensor(0.25), flow.tensor(2.0)
    wanted = flow.scaled_mm(a, b, *scales, result)
    exact = (a.to(flow.float64) @ b.to(flow.float64)).numpy() * 0.5
    tolerance = 1e-5 if result == flow.float32 else 1e-2
    np.testing.assert_allclose(wanted.to(flow.float32).numpy(), exact, rtol=tolerance, atol=tolerance)
    for left in (a, a.t().contiguous().t()):
        for right in (b, b.t().contiguous().t()):
            on = [t.cuda() for t in (left, right, *scales)]
            with native():
                found = flow.scaled_mm(*on, result)
            assert found.is_cuda and found.dtype == result
            np.testing.assert_allclose(found.cpu().to(flow.float32).numpy(), exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_round(native, dtype):
    x = flow.tensor(numbers((24, 18)))
    for t in (x, x.t(), x.to(flow.bfloat16)):
        wanted = flow.round_float8(t, dtype)
        on = t.cuda()
        with native():
            found = flow.round_float8(on, dtype)
        np.testing.assert_array_equal(found.cpu().to(flow.float32).numpy(), wanted.to(flow.float32).numpy())


@pytest.mark.parametrize("recipe", [False, True])
def test_regions(native, recipe):
    """Training in a region is the CPU's, by kernels of the device."""

    def losses(device):
        flow.manual_seed(2)
        model = flow.nn.Sequential(flow.nn.Linear(32, 64), flow.nn.ReLU(), flow.nn.Linear(64, 16)).to(device)
        scaling = flow.amp.DelayedScaling(model, amax_history_len=4) if recipe else None
        optimizer = flow.optim.SGD(model.parameters(), lr=0.05)
        found = []
        for step in range(4):
            x = flow.tensor(np.random.default_rng(step).standard_normal((32, 32)).astype(np.float32)).to(device)
            optimizer.zero_grad()
            with native() if device == "cuda" else contextlib.nullcontext():
                with flow.autocast(device, dtype=flow.float8_e4m3fn, recipe=scaling):
                    loss = model(x).to(flow.float32).square().mean()
                loss.backward()
            optimizer.step()
            if scaling:
                scaling.update()
            found.append(loss.item())
        return found, {n: t.cpu().numpy() for n, t in scaling.state_dict().items()} if scaling else {}

    (cpu, states), (device, own) = losses("cpu"), losses("cuda")
    np.testing.assert_allclose(device, cpu, rtol=2e-2)
    assert states.keys() == own.keys()
    for name in states:
        if name.endswith("history"):
            np.testing.assert_allclose(own[name], states[name], rtol=5e-2)


def product(device, layout, ranks):
    """Result and gradients of a product whose factors are divided so, whole."""
    random = np.random.default_rng(5)
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in ((4, 8, 32), (48, 32), (48,))]
    out = []

    def rank(r):
        flow.manual_seed(0)
        placement = flow.placement(device, list(range(ranks)))
        x, w, b = (
            flow.tensor(a)
            .to_global(flow.placement("cpu", list(range(ranks))), flow.sbp.broadcast)
            .to_global(placement, s)
            for a, s in zip(arrays, layout)
        )
        leaves = [t.detach() for t in (x, w, b)]
        for t in leaves:
            t.requires_grad = True
        recipe = flow.amp.DelayedScaling([("w", leaves[1])], amax_history_len=1)
        found = []
        for _ in range(2):
            with flow.autocast(device, dtype=flow.float8_e4m3fn, recipe=recipe):
                y = flow.nn.functional.linear(*leaves)
            (y.to(flow.float32) * 3).sum().backward()
            recipe.update()
            found += [y.detach(), *(t.grad for t in leaves)]
        history = recipe.state_dict()["w.amax_history"]
        found = [
            t.to_global(sbp=flow.sbp.broadcast).to_local().cpu().to(flow.float32).numpy() for t in [*found, history]
        ]
        if r == 0:
            out.extend(found)

    flow.run_ranks(ranks, rank)
    return out


S, B = flow.sbp.split, flow.sbp.broadcast


@pytest.mark.parametrize("layout", [(S(0), B, B), (B, S(0), S(0)), (S(2), S(1), B), (S(1), B, B), (B, B, B)])
def test_ranks(layout):
    wanted = product("cpu", (B, B, B), 1)
    found = product("cuda", layout, 2)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=2.0**-6, atol=2.0**-5 * np.abs(b).max())
