"""The microscaling formats of OCP against ml_dtypes."""

import numpy as np
import pytest

import holon as flow

B, S = flow.sbp.broadcast, flow.sbp.split
LIMITS = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}


def of_numpy(x):
    return flow.from_numpy(np.ascontiguousarray(x))


def bytes_of(t):
    return t.view(flow.uint8).numpy()


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_microscaling(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.random.default_rng(5).standard_normal((4, 3, 96)).astype(np.float32)
    x *= np.exp2(np.random.default_rng(6).integers(-20, 20, (4, 3, 1))).astype(np.float32)
    x[0, 0] = 0
    groups = x.reshape(4, 3, 3, 32)
    largest = np.abs(groups).max(-1)
    exponents = np.where(largest > 0, np.frexp(largest)[1] - 1 - (8 if name == "float8_e4m3fn" else 15), -127)
    scaled = np.clip(np.ldexp(groups, -exponents[..., None]), -LIMITS[name], LIMITS[name])
    wanted = (
        scaled.astype(getattr(ml_dtypes, name)).astype(np.float32) * np.exp2(exponents.astype(np.float32))[..., None]
    )

    values, scales = flow.quantize_mx(of_numpy(x), getattr(flow, name))
    np.testing.assert_array_equal(bytes_of(scales), (exponents + 127).astype(np.uint8))
    np.testing.assert_array_equal(
        flow.dequantize_mx(values, scales, flow.float32).numpy().reshape(groups.shape), wanted
    )

    def rank(r):
        everywhere = flow.placement.all("cpu")
        for sbp in (S(0), S(1), S(2), B):
            t = of_numpy(x).to_global(everywhere, B).to_global(sbp=sbp)
            v, s = flow.quantize_mx(t, getattr(flow, name))
            np.testing.assert_array_equal(flow.dequantize_mx(v, s, flow.float32).numpy().reshape(groups.shape), wanted)

    flow.run_ranks(3, rank)
    assert np.isnan(
        flow.dequantize_mx(*flow.quantize_mx(flow.full((32,), np.inf), flow.float8_e5m2), flow.float32).numpy()
    ).all()
    with pytest.raises(ValueError, match="multiple of 32"):
        flow.quantize_mx(flow.ones(2, 31), flow.float8_e5m2)
    with pytest.raises(ValueError, match="one for each 32"):
        flow.dequantize_mx(values, scales[:1], flow.float32)


def numbers(random, shape):
    """Of all sizes, some of them halfway between two numbers of E2M1 and beyond the largest."""
    x = random.standard_normal(shape).astype(np.float32)
    x *= np.exp2(random.integers(-20, 20, (*shape[:-1], 1))).astype(np.float32)
    x[..., ::7] = np.exp2(np.round(np.log2(np.abs(x[..., ::7]) + 1e-30))) * random.choice(
        [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 7.9], x[..., ::7].shape
    )
    return x.astype(np.float32)


def test_mxfp4():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = numbers(np.random.default_rng(7), (4, 3, 96))
    x[0, 0] = 0
    x[0, 1, :32] = 0.1
    x[0, 1, 0] = 7.9 / 64
    groups = x.reshape(4, 3, 3, 32)
    largest = np.abs(groups).max(-1)
    exponents = np.where(largest > 0, np.frexp(largest)[1] - 1 - 2, -127)
    scaled = np.ldexp(groups, -exponents[..., None]).astype(np.float32)
    codes = np.clip(scaled, -6, 6).astype(ml_dtypes.float4_e2m1fn)
    nibbles = codes.view(np.uint8) & 15
    wanted = codes.astype(np.float32) * np.exp2(exponents.astype(np.float64))[..., None].astype(np.float32)

    blocks, scales = flow.quantize_mxfp4(of_numpy(x))
    assert blocks.shape == (4, 3, 3, 16) and blocks.dtype == flow.uint8 and scales.dtype == flow.float8_e8m0fnu
    np.testing.assert_array_equal(bytes_of(scales), (exponents + 127).astype(np.uint8))
    np.testing.assert_array_equal(blocks.numpy(), nibbles[..., ::2] | nibbles[..., 1::2] << 4)
    for given in (scales, scales.view(flow.uint8)):
        back = flow.dequantize_mxfp4(blocks, given, flow.float32).numpy().reshape(groups.shape)
        np.testing.assert_array_equal(back.view(np.uint32), wanted.view(np.uint32))
    assert flow.dequantize_mxfp4(blocks, scales, flow.bfloat16).dtype == flow.bfloat16
    # Every byte is what ml_dtypes has for its halves.
    every = np.arange(256, dtype=np.uint8).reshape(16, 16)
    back = flow.dequantize_mxfp4(of_numpy(every), flow.full((16,), 1.0).to(flow.float8_e8m0fnu), flow.float32)
    wanted = np.stack([every & 15, every >> 4], -1).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    np.testing.assert_array_equal(back.numpy().view(np.uint32), wanted.reshape(-1).view(np.uint32))


def test_mxfp4_on_ranks():
    x = numbers(np.random.default_rng(8), (4, 6, 96))
    wanted = [t.numpy() for t in flow.quantize_mxfp4(of_numpy(x))]

    def rank(r):
        everywhere = flow.placement.all("cpu")
        for sbp in (S(0), S(1), S(2), B):
            blocks, scales = flow.quantize_mxfp4(of_numpy(x).to_global(everywhere, B).to_global(sbp=sbp))
            np.testing.assert_array_equal(blocks.numpy(), wanted[0])
            np.testing.assert_array_equal(scales.numpy(), wanted[1])
            back = flow.dequantize_mxfp4(blocks, scales, flow.float32)
            assert back.sbp == (sbp,)

    flow.run_ranks(3, rank)


def test_mxfp4_in_files(tmp_path):
    """What is made here is what checkpoints are read as."""
    x = numbers(np.random.default_rng(9), (2, 8, 64))
    blocks, scales = flow.quantize_mxfp4(of_numpy(x))
    flow.save({"w_blocks": blocks, "w_scales": scales.view(flow.uint8)}, tmp_path / "m.safetensors")
    read = flow.load(tmp_path / "m.safetensors", dequantize=flow.float32)["w"]
    np.testing.assert_array_equal(read.numpy(), flow.dequantize_mxfp4(blocks, scales, flow.float32).numpy())


def test_bad_mxfp4():
    with pytest.raises(ValueError, match="multiple of 32"):
        flow.quantize_mxfp4(flow.ones(2, 31))
    with pytest.raises(TypeError, match="quantize_mxfp4"):
        flow.quantize_mx(flow.ones(2, 32), flow.float8_e8m0fnu)
    blocks, scales = flow.quantize_mxfp4(flow.full((2, 32), np.nan))
    assert np.isnan(flow.dequantize_mxfp4(blocks, scales, flow.float32).numpy()).all()
    with pytest.raises(ValueError, match="groups, 16"):
        flow.dequantize_mxfp4(blocks, scales[:1], flow.float32)
    with pytest.raises(TypeError, match="not uint8"):
        flow.dequantize_mxfp4(flow.ones(2, 1, 16), scales, flow.float32)
