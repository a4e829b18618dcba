"""float8: dtypes for storage, whose casts are bitwise those of ml_dtypes, and products of rounded numbers."""

import numpy as np
import pytest

import holon as flow

DTYPES = ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"]
LIMITS = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
S, B, P = flow.sbp.split, flow.sbp.broadcast, flow.sbp.partial_sum


def of_numpy(a):
    return flow.tensor(a)


def bytes_of(t):
    return t.view(flow.uint8).numpy()


def floats():
    """Every 4,096th float32 with its neighbours, and random ones."""
    steps = np.arange(0, 2**32, 2**12, dtype=np.uint64)
    some = np.random.default_rng(0).integers(0, 2**32, 500_000, dtype=np.uint64)
    return np.concatenate([steps, steps + 1, steps + 2**12 - 1, some]).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("name", DTYPES)
def test_casts_are_those_of_ml_dtypes(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    theirs, ours = getattr(ml_dtypes, name), getattr(flow, name)
    x = floats()
    halves = np.arange(2**16, dtype=np.uint16)
    with np.errstate(all="ignore"):
        for wide in (x, x.astype(np.float64), np.nextafter(x.astype(np.float64), 1), halves.view(np.float16)):
            np.testing.assert_array_equal(bytes_of(of_numpy(wide).to(ours)), wide.astype(theirs).view(np.uint8))
        brain = halves.view(ml_dtypes.bfloat16)
        ours_brain = of_numpy(halves.view(np.float16)).view(flow.bfloat16)
        np.testing.assert_array_equal(bytes_of(ours_brain.to(ours)), brain.astype(theirs).view(np.uint8))
        whole = np.arange(-70_000, 70_000, dtype=np.int32)
        np.testing.assert_array_equal(bytes_of(of_numpy(whole).to(ours)), whole.astype(theirs).view(np.uint8))
        every = np.arange(256, dtype=np.uint8)
        back = of_numpy(every).view(ours)
        for wide, bits in ((np.float32, np.uint32), (np.float64, np.uint64), (np.float16, np.uint16)):
            found = back.to(getattr(flow, wide.__name__)).numpy()
            np.testing.assert_array_equal(found.view(bits), every.view(theirs).astype(wide).view(bits))


@pytest.mark.parametrize("isa", ["base", "v3", "v4"])
def test_instruction_sets_agree(isa, tmp_path):
    """Strided and contiguous casts by each set, against those of this process."""
    import os
    import subprocess
    import sys

    program = (
        "import numpy as np, holon as flow\n"
        "x = np.random.default_rng(1).standard_normal((97, 63)).astype('float32') * 200\n"
        "t = flow.tensor(x)\n"
        "out = [v.to(d).view(flow.uint8).numpy() for d in (flow.float8_e4m3fn, flow.float8_e5m2, flow.float8_e8m0fnu)"
        " for v in (t, t.t(), t[::3, 1::2])]\n"
        "print(hash(b''.join(o.tobytes() for o in out)))\n"
    )
    answers = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": "0", **extra},
            capture_output=True,
            text=True,
        )
        for extra in ({}, {"HOLON_ISA": isa})
    ]
    if "lacks" in answers[1].stderr:
        pytest.skip(f"this machine has no {isa}")
    assert answers[0].stdout == answers[1].stdout != "", answers[1].stderr


def test_tensors_move_as_others():
    x = (flow.arange(24) - 7).to(flow.float32).reshape(4, 6)
    y = x.to(flow.float8_e4m3fn)
    assert y.dtype == flow.float8_e4m3fn and y.element_size() == 1 and y.is_floating_point()
    same = [
        lambda t: t[1:3, ::2],
        lambda t: t.t().contiguous(),
        lambda t: t.reshape(3, 8),
        lambda t: flow.cat([t, t], 1),
        lambda t: flow.stack([t, t]),
        lambda t: t.flip(0),
        lambda t: t.clone(),
        lambda t: t[flow.tensor([2, 0])],
        lambda t: flow.index_select(t, 1, flow.tensor([5, 5, 0])),
        lambda t: flow.gather(t, 1, flow.tensor([[1], [2], [3], [0]])),
        lambda t: t.expand(2, 4, 6),
    ]
    for f in same:
        np.testing.assert_array_equal(f(y).numpy(), f(x).numpy())
    z = flow.zeros(2, 3, dtype=flow.float8_e5m2)
    z.copy_(flow.ones(2, 3) * 3)
    assert z.tolist() == [[3.0] * 3] * 2 and z[0, 0].item() == 3.0
    assert flow.tensor([1.0, 2.5, -3], dtype=flow.float8_e5m2).tolist() == [1.0, 2.5, -3.0]
    assert "float8_e5m2" in repr(z) and "3." in repr(z)
    assert flow.full((2,), 300.0, dtype=flow.float8_e4m3fn).tolist() == [288.0] * 2
    assert flow.finfo(flow.float8_e4m3fn).max == 448 and flow.finfo(flow.float8_e5m2).max == 57344
    assert flow.finfo(flow.float8_e4m3fn).smallest_subnormal == 2.0**-9


def test_layouts_and_files(tmp_path):
    values = np.random.default_rng(2).standard_normal((10, 6)).astype(np.float32)
    wanted = of_numpy(values).to(flow.float8_e4m3fn).numpy()

    def rank(r):
        everywhere = flow.placement.all("cpu")
        t = of_numpy(values).to(flow.float8_e4m3fn).to_global(everywhere, B)
        for a in (S(0), S(1), B):
            for b in (S(0), S(1), B):
                np.testing.assert_array_equal(t.to_global(sbp=a).to_global(sbp=b).numpy(), wanted)
        flow.save({"w": t.to_global(sbp=S(0))}, tmp_path / "parts")
        flow.save({"w": t.to_global(sbp=S(0))}, tmp_path / "hf", format="hf")
        for name in ("parts", "hf"):
            back = flow.load(tmp_path / name, map_location=everywhere, sbp=S(1))["w"]
            assert back.dtype == flow.float8_e4m3fn
            np.testing.assert_array_equal(back.numpy(), wanted)
        with pytest.raises(TypeError, match="no partial sums"):
            t.to_global(sbp=P)

    flow.run_ranks(3, rank)


def test_nothing_is_computed():
    x = flow.ones(2, 3).to(flow.float8_e4m3fn)
    calls = [
        lambda: x + x,
        lambda: x + 1,
        lambda: x.sum(),
        lambda: x.exp(),
        lambda: x @ x.t(),
        lambda: flow.nn.functional.linear(flow.ones(2, 3), x),
        lambda: flow.softmax(x, -1),
        lambda: flow.rand(2, dtype=flow.float8_e5m2),
        lambda: x.add_(1),
        lambda: flow.sort(x),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="float8"):
            call()
    with pytest.raises(TypeError, match="another size"):
        x.view(flow.int32)
    w = flow.ones(3, requires_grad=True)
    with pytest.raises(NotImplementedError, match="Detach"):
        w.to(flow.float8_e4m3fn).to(flow.float32).sum().backward()
    with pytest.raises(TypeError, match="float8"):
        flow.promote_types(flow.float8_e4m3fn, flow.float32)


def rounded(x, name, rows=0, columns=0):
    """By the definition, in NumPy."""
    import ml_dtypes

    x = np.asarray(x, np.float32)
    out = np.empty_like(x)
    height, width = (rows, columns) if rows else x.shape[-2:]
    for at in np.ndindex(*x.shape[:-2]):
        for r in range(0, x.shape[-2], height):
            for c in range(0, x.shape[-1], width):
                block = (*at, slice(r, r + height), slice(c, c + width))
                largest = np.abs(x[block]).max()
                scale = 1.0
                if largest > 0:
                    scale = 2.0 ** np.floor(np.log2(LIMITS[name] / largest.astype(np.float64)))
                scaled = (x[block] * np.float32(scale)).astype(getattr(ml_dtypes, name))
                out[block] = scaled.astype(np.float32) / np.float32(scale)
    return out


@pytest.mark.parametrize("block", [(0, 0), (1, 4), (4, 4), (3, 5)])
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_rounding(name, block):
    pytest.importorskip("ml_dtypes")
    x = np.random.default_rng(3).standard_normal((8, 12)).astype(np.float32)
    x[2] *= 1000
    x[5] *= 1e-6
    x[7] = 0
    dtype = getattr(flow, name)
    found = flow.round_float8(of_numpy(x), dtype, *block)
    np.testing.assert_array_equal(found.numpy(), rounded(x, name, *block))
    batch = np.stack([x, x * 3]) if block[0] else None
    if batch is not None:
        np.testing.assert_array_equal(
            flow.round_float8(of_numpy(batch), dtype, *block).numpy(), rounded(batch, name, *block)
        )
    # Every scaled number is one of bfloat16, too.
    np.testing.assert_array_equal(
        flow.round_float8(of_numpy(x), dtype, *block).to(flow.bfloat16).numpy(), found.numpy()
    )

    def rank(r):
        everywhere = flow.placement.all("cpu")
        for sbp in (S(0), S(1), B, P):
            t = of_numpy(x).to_global(everywhere, B).to_global(sbp=sbp)
            np.testing.assert_array_equal(flow.round_float8(t, dtype, *block).numpy(), found.numpy())

    flow.run_ranks(2, rank)


def test_rounding_of_odd_values():
    for x in ([0.0, 0.0], [np.inf, 1.0], [np.nan, 1.0], [1e-45, 1e-45], [3e38, 1.0]):
        y = flow.round_float8(flow.tensor(x), flow.float8_e5m2).numpy()
        assert np.isfinite(y[1]) and np.isnan(y[0]) == np.isnan(x[0]), (x, y)
    assert flow.round_float8(flow.zeros(0, 3), flow.float8_e5m2).shape == (0, 3)
    with pytest.raises(ValueError, match="rows and columns"):
        flow.round_float8(flow.ones(2, 2), flow.float8_e5m2, 1, 0)
    with pytest.raises(TypeError, match="neither"):
        flow.round_float8(flow.ones(2, 2), flow.bfloat16)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_quantize_saturates(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.random.default_rng(1).standard_normal((40, 30)).astype(np.float32) * 100
    for scale in (1.0, 4.0, 2.0**-10, 2.0**14):
        wanted = np.clip(x * np.float32(scale), -LIMITS[name], LIMITS[name]).astype(getattr(ml_dtypes, name))
        found = flow.quantize_float8(of_numpy(x), flow.tensor(scale), getattr(flow, name))
        np.testing.assert_array_equal(bytes_of(found), wanted.view(np.uint8))
    odd = flow.quantize_float8(flow.tensor([np.inf, np.nan, 1e30, -1e30]), flow.tensor(1.0), getattr(flow, name))
    np.testing.assert_array_equal(
        odd.numpy(), [np.inf if name == "float8_e5m2" else np.nan, np.nan, LIMITS[name], -LIMITS[name]]
    )


def test_scales():
    for largest in (1.0, 3.0, 447.0, 448.0, 449.0, 1e-30, 1e30, 57344.0, 0.0, np.inf):
        for name, limit in LIMITS.items():
            if name == "float8_e8m0fnu":
                continue
            found = flow.float8_scale(flow.tensor([0.25 * largest, -largest]), getattr(flow, name))
            wanted = 2.0 ** np.floor(np.log2(limit / largest)) if 0 < largest < np.inf else 1.0
            assert found.shape == () and found.item() == np.clip(wanted, 2.0**-126, 2.0**126), (name, largest)
    assert flow.float8_scale(flow.zeros(0, 3), flow.float8_e5m2).item() == 1.0


def test_scaled_mm():
    random = np.random.default_rng(2)
    a, b = random.standard_normal((6, 8)).astype(np.float32), random.standard_normal((8, 4)).astype(np.float32)
    a, b = of_numpy(a).to(flow.float8_e5m2), of_numpy(b).to(flow.float8_e4m3fn)
    scales = flow.tensor(0.25), flow.tensor(2.0)
    wanted = a.numpy() @ b.numpy() * 0.5
    for dtype, tolerance in ((flow.float32, 1e-6), (flow.bfloat16, 2.0**-8), (flow.float16, 2.0**-11)):
        found = flow.scaled_mm(a, b, *scales, dtype)
        assert found.dtype == dtype
        np.testing.assert_allclose(found.to(flow.float32).numpy(), wanted, rtol=tolerance, atol=tolerance)

    def rank(r):
        everywhere = flow.placement.all("cpu")
        x, y, *s = (t.to_global(everywhere, B) for t in (a, b, *scales))
        for left, right, out in ((S(0), B, S(0)), (B, S(1), S(1)), (S(1), S(0), P), (B, B, B)):
            z = flow.scaled_mm(x.to_global(sbp=left), y.to_global(sbp=right), *s, flow.float32)
            assert z.sbp == (out,)
            np.testing.assert_allclose(z.numpy(), wanted, rtol=1e-5, atol=1e-6)

    flow.run_ranks(2, rank)
    with pytest.raises(ValueError, match="one inner size"):
        flow.scaled_mm(a, a, *scales, flow.float32)
    with pytest.raises(TypeError, match="quantize_float8"):
        flow.scaled_mm(a, flow.ones(8, 4), *scales, flow.float32)
    with pytest.raises(TypeError, match="out_dtype"):
        flow.scaled_mm(a, b, *scales, flow.float64)


def step(x, w, b, block, place=lambda t: t):
    x, w, b = (place(of_numpy(t)) for t in (x, w, b))
    for t in (x, w, b):
        t.requires_grad = True
    with flow.autocast(dtype=flow.float8_e4m3fn, float8_block=block):
        y = flow.nn.functional.linear(x, w, b)
    assert y.dtype == flow.bfloat16
    (y.to(flow.float32) * y.to(flow.float32) * 0.5).sum().backward()
    return [t.numpy() for t in (y.detach(), x.grad, w.grad, b.grad)]


@pytest.mark.parametrize("block", [0, 4])
def test_products_in_float8(block):
    """The forward and backward of a linear layer, by the definition."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    random = np.random.default_rng(4)
    x, w = random.standard_normal((6, 8)).astype(np.float32), random.standard_normal((12, 8)).astype(np.float32)
    b = random.standard_normal(12).astype(np.float32)

    def lowered(a):
        return a.astype(ml_dtypes.bfloat16).astype(np.float32)

    row = (1, block) if block else (0, 0)
    xq = rounded(lowered(x), "float8_e4m3fn", *row)
    wq = rounded(lowered(w), "float8_e4m3fn", block, block)
    y = lowered(xq @ wq.T + lowered(b))
    dy = rounded(y, "float8_e5m2", *row)
    wanted = [y, lowered(dy @ wq), lowered(dy.T @ xq), lowered(dy.sum(0))]
    for found, expected in zip(step(x, w, b, block), wanted):
        # One step of bfloat16: sums are taken in another order.
        np.testing.assert_allclose(found, expected, rtol=2.0**-7, atol=1e-3)

    one = step(x, w, b, block)

    def rank(r):
        everywhere = flow.placement.all("cpu")
        found = step(x, w, b, block, lambda t: t.to_global(everywhere, B))
        for a, c in zip(found, one):
            np.testing.assert_allclose(a, c, rtol=2.0**-7, atol=1e-3)

    flow.run_ranks(2, rank)


def test_float8_differs_from_bfloat16_and_trains():
    flow.manual_seed(0)
    x, y = flow.rand(64, 16), flow.randint(0, 4, [64])
    losses = {}
    for dtype in (None, flow.bfloat16, flow.float8_e4m3fn):
        flow.manual_seed(1)
        model = flow.nn.Sequential(flow.nn.Linear(16, 64), flow.nn.ReLU(), flow.nn.Linear(64, 4))
        optimizer = flow.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(60):
            optimizer.zero_grad()
            with flow.autocast(dtype=dtype or flow.bfloat16, enabled=dtype is not None):
                loss = flow.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        losses[dtype] = loss.item()
    assert losses[flow.float8_e4m3fn] != losses[flow.bfloat16]
    assert abs(losses[flow.float8_e4m3fn] - losses[None]) < 0.15, losses


def test_in_graphs():
    x = flow.rand(8, 16)
    layer = flow.nn.Linear(16, 8)

    class Step(flow.nn.Graph):
        def __init__(self):
            super().__init__()
            self.layer = layer
            self.config.enable_amp(True, dtype=flow.float8_e4m3fn)

        def build(self, x):
            return self.layer(x)

    with flow.autocast(dtype=flow.float8_e4m3fn):
        wanted = layer(x)
    np.testing.assert_array_equal(Step()(x).numpy(), wanted.numpy())


def test_bad_regions():
    with pytest.raises(ValueError, match="float8_e8m0fnu"):
        flow.autocast(dtype=flow.float8_e8m0fnu)
    with pytest.raises(ValueError, match="float8_block is -1"):
        flow.autocast(dtype=flow.float8_e4m3fn, float8_block=-1).__enter__()
