"""scaled_dot_product_attention and its gradients on a device against the CPU's."""

import ctypes
import json
import os
import subprocess
import sys

import numpy as np
import pytest

import holon as flow

F = flow.nn.functional
pytestmark = pytest.mark.usefixtures("own_kernels")  # test_dnn.py has the library's
# float32 differs by the order of sums; the two-byte types round probabilities and gradients of scores to themselves.
TOLERANCE = {"float32": 4e-6, "float64": 1e-12, "float16": 4e-3, "bfloat16": 3e-2}


def draw(seed, *shape):
    return np.random.RandomState(seed).randn(*shape).astype("float64")


def close(got, want, dtype, what):
    got, want = got.double().cpu().numpy(), want.double().numpy()
    assert got.shape == want.shape
    np.testing.assert_allclose(
        got, want, rtol=0, atol=TOLERANCE[dtype] * max(1.0, np.abs(want).max(initial=0)), err_msg=what
    )


def check(native, dtype, q_shape, kv_shape, e=None, mask=None, view=None, seed=None, gradients=True, **options):
    """The same call on both; view(tensor) makes the operands from the tensors whose gradients are compared."""
    kind = getattr(flow, dtype)
    v_shape = (*kv_shape[:-1], e or kv_shape[-1])
    arrays = [draw(i, *shape) for i, shape in enumerate((q_shape, kv_shape, v_shape))]
    results = []
    for device in ("cpu", "cuda"):
        leaves = [flow.tensor(a).to(kind).to(device).requires_grad_() for a in arrays]
        operands = [view(x) for x in leaves] if view else leaves
        m = None if mask is None else mask.to(device)
        if seed is not None:
            flow.manual_seed(seed)

        def run():
            y = F.scaled_dot_product_attention(*operands, attn_mask=m, **options)
            if not gradients:
                return [y]
            dy = flow.tensor(draw(9, *y.shape)).to(kind).to(device)
            return [y, *flow.autograd.grad(y, leaves, dy)]

        if device == "cpu":
            results.append(run())
        else:
            run_cuda = run
    with native():
        results.append(run_cuda())
    for name, want, got in zip(("out", "dq", "dk", "dv"), *results):
        assert got.device.type == "cuda" and got.dtype == kind
        close(got, want, dtype, name)
    return results


DTYPES = ["float32", "float64", "float16", "bfloat16"]
TILED = [d for d in DTYPES if d != "float64"]


def emulator():
    """The emulator's own functions; skips the test on a device."""
    if not os.environ.get("HOLON_CUDA_LIBRARY", "").endswith("emulated.so"):
        pytest.skip("the emulator counts it")
    return ctypes.CDLL(os.environ["HOLON_CUDA_LIBRARY"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
def test_basic(native, dtype, causal):
    check(native, dtype, (2, 2, 70, 40), (2, 2, 70, 40), is_causal=causal)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [1, 5])
@pytest.mark.parametrize("d, e", [(8, 8), (64, 64), (33, 17), (128, 72), (80, 128), (256, 256), (200, 131)])
def test_widths(native, dtype, d, e, heads):
    check(native, dtype, (1, heads, 19, d), (1, heads, 37, d), e, is_causal=True)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("d, e", [(64, 64), (128, 96), (200, 256)])
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_devices_with_less_shared_memory(native, dtype, d, e, p):
    """Of compute capability 8.6 and 8.9: a launch that asks for more than they have stops the emulator."""
    set_kb = emulator().emulated_shared_kb
    set_kb(99)
    try:
        check(native, dtype, (1, 4, 37, d), (1, 2, 75, d), e, is_causal=True, enable_gqa=True, dropout_p=p, seed=4)
    finally:
        set_kb(227)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("d, t, s", [(64, 130, 70), (128, 9, 65)])
def test_as_many_blocks_as_multiprocessors(native, dtype, d, t, s):
    """Heads for all multiprocessors of any device, and one too few: from there on tiles have twice the rows."""
    processors = flow.cuda.get_device_properties(0)[4]
    blocks = -(-t // 128)
    for heads in (-(-processors // blocks), (processors - 1) // blocks):
        check(native, dtype, (1, heads, t, d), (1, heads, s, d), is_causal=t < s, dropout_p=0.2, seed=5)


# Of these 3, 7 and 17 tiles of keys (5, 13 and 33 for float32) blocks take several each, in more than one round.
@pytest.mark.parametrize("dtype", TILED)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("t, s", [(70, 300), (200, 834), (40, 2100), (150, 600)])
def test_tiles_of_keys_in_rounds(native, dtype, causal, t, s):
    check(native, dtype, (1, 2, t, 16), (1, 1, s, 16), is_causal=causal, enable_gqa=True)


@pytest.mark.parametrize("dtype", TILED)
@pytest.mark.parametrize("d, e", [(64, 64), (128, 80), (256, 200)])
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_gradients_have_the_same_bits_twice(dtype, d, e, p):
    shapes = (2, 4, 150, d), (2, 2, 300, d), (2, 2, 300, e)
    x = [flow.tensor(draw(i, *s)).to(getattr(flow, dtype)).cuda().requires_grad_() for i, s in enumerate(shapes)]

    def run():
        flow.manual_seed(3)
        y = F.scaled_dot_product_attention(*x, enable_gqa=True, dropout_p=p)
        return [g.cpu().double().numpy() for g in flow.autograd.grad(y, x, flow.ones_like(y))]

    for one, two in zip(run(), run()):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("d, products", [(64, 5), (128, 5), (256, 7)])
def test_products_of_the_backward_pass(d, products):
    """One pass: wider than 128 columns scores and their gradients are computed twice."""
    count = emulator().emulated_products
    count.restype = ctypes.c_int64
    q, k, v = (flow.randn(1, 2, n, d, device="cuda").to(flow.bfloat16).requires_grad_() for n in (128, 384, 384))
    y = F.scaled_dot_product_attention(q, k, v)
    flow.cuda.synchronize()
    count()
    flow.autograd.grad(y, (q, k, v), flow.ones_like(y))
    flow.cuda.synchronize()
    assert count() == products * 2 * (128 // 16) * (384 // 8) * (d // 16)


def test_shared_memory_is_asked_for_once():
    requests = emulator().emulated_shared_requests
    requests.restype = ctypes.c_int64
    x = flow.randn(1, 1, 16, 128, device="cuda").to(flow.float16).requires_grad_()

    def run():
        F.scaled_dot_product_attention(x, x, x).sum().backward()
        flow.cuda.synchronize()
        return requests()

    run()
    assert run() == 0


PARTS = """
import ctypes, json, os, sys
import numpy as np
import holon as flow

launches = ctypes.CDLL(os.environ["HOLON_CUDA_LIBRARY"]).emulated_launch_count
launches.restype = ctypes.c_int64
flow.manual_seed(1)
results, counts = {}, {}
for heads, shared in ((2, 2), (4, 1)):
    for causal in (False, True):
        sizes = (heads, 300), (shared, 290), (shared, 290)
        x = [flow.randn(1, h, t, 64).to(flow.bfloat16).cuda().requires_grad_() for h, t in sizes]
        y = flow.nn.functional.scaled_dot_product_attention(*x, is_causal=causal, enable_gqa=True)
        before = launches()
        gradients = flow.autograd.grad(y, x, y)
        counts[f"{heads} {causal}"] = launches() - before
        for name, g in zip("qkv", gradients):
            results[f"{heads} {causal} {name}"] = g.cpu().float().numpy()
np.savez(sys.argv[1], **results)
print(json.dumps(counts))
"""


def test_queries_in_several_launches(tmp_path):
    """Where the sums for queries would take too much of the device's memory, of which they may have a 128th."""
    emulator()
    found, launches = {}, {}
    for megabytes in (4096, 32):
        file = tmp_path / f"{megabytes}.npz"
        done = subprocess.run(
            [sys.executable, "-c", PARTS, str(file)],
            env=os.environ | {"EMULATED_MEMORY_MB": str(megabytes)},
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, done.stderr
        launches[megabytes] = json.loads(done.stdout)
        found[megabytes] = dict(np.load(file))
    assert set(launches[4096].values()) == {3}  # rows' products, keys, the sum of the splits
    assert launches[32] == {"2 False": 5, "2 True": 5, "4 False": 11, "4 True": 11}
    for name, want in found[4096].items():
        got = found[32][name]
        if name.startswith("2"):
            np.testing.assert_array_equal(got, want, err_msg=name)
        else:  # heads that share keys are added up in another order
            np.testing.assert_allclose(got, want, atol=TOLERANCE["bfloat16"] * np.abs(want).max(), err_msg=name)


@pytest.mark.parametrize("dtype", TILED)
def test_keys_that_fill_no_tile_beside_low_scores(native, dtype):
    """Sums of scores far below 0, by which the rows behind the last key must not be divided. Such scores are rounded
    to hundred-thousandths, so the device is compared with the true results, as the CPU is."""
    q, k, v = draw(0, 1, 1, 20, 16), draw(1, 1, 1, 70, 16), draw(2, 1, 1, 70, 16)
    arrays = [flow.tensor(a).to(getattr(flow, dtype)).double() for a in (-30 - q, 30 + k, v)]

    def run(kind, device):
        x = [a.to(kind).to(device).requires_grad_() for a in arrays]
        y = F.scaled_dot_product_attention(*x, scale=0.02)
        return [r.detach().cpu().double().numpy() for r in (y, *flow.autograd.grad(y, x, flow.ones_like(y)))]

    kind = getattr(flow, dtype)
    for true, near, got in zip(run(flow.float64, "cpu"), run(kind, "cpu"), run(kind, "cuda")):
        assert np.abs(got - true).max() <= 2 * np.abs(near - true).max() + TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [1, 20, 64])
def test_windows(native, dtype, window):
    check(native, dtype, (1, 2, 150, 24), (1, 2, 150, 24), is_causal=True, window=window)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("t, s", [(1, 1), (1, 130), (130, 1), (64, 64), (65, 129), (16, 128), (3, 200)])
@pytest.mark.parametrize("causal", [False, True])
def test_lengths(native, dtype, t, s, causal):
    check(native, dtype, (1, 2, t, 16), (1, 2, s, 16), is_causal=causal)


@pytest.mark.parametrize("dtype", DTYPES)
def test_grouped_queries(native, dtype):
    check(native, dtype, (2, 6, 70, 24), (2, 2, 66, 24), enable_gqa=True, is_causal=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3, 21, 70), (2, 1, 21, 70), (1, 3, 1, 70), (21, 1), (2, 1, 1, 70)])
@pytest.mark.parametrize("kind", ["bool", "added", "own"])
def test_masks(native, dtype, shape, kind):
    a = draw(7, *shape)
    mask = (
        flow.tensor(a > 0)
        if kind == "bool"
        else flow.tensor(a).to(flow.float32 if kind == "added" else getattr(flow, dtype))
    )
    check(native, dtype, (2, 3, 21, 16), (2, 3, 70, 16), mask=mask)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_see_nothing(native, dtype):
    seen = np.ones((1, 1, 40, 70), bool)
    seen[..., 3, :] = seen[..., 20:, :] = False
    seen[..., 10, 1:] = False
    got = check(native, dtype, (1, 2, 40, 16), (1, 2, 70, 16), mask=flow.tensor(seen))[1]
    assert not got[0][:, :, 3].cpu().any() and not got[1][:, :, 20:].cpu().any()
    added = np.where(seen, 0, -np.inf)
    check(native, dtype, (1, 2, 40, 16), (1, 2, 70, 16), mask=flow.tensor(added).to(getattr(flow, dtype)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [0.3, 1.0])
def test_dropout(native, dtype, p):
    check(native, dtype, (2, 2, 40, 16), (2, 2, 150, 16), seed=5, dropout_p=p)
    check(native, dtype, (1, 4, 70, 200), (1, 2, 70, 200), seed=6, dropout_p=p, is_causal=True, enable_gqa=True)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_strides(native, dtype):
    # [b, t, h, d], as linear layers leave it; columns that are not adjacent; rows that begin anywhere
    check(native, dtype, (2, 21, 3, 16), (2, 35, 3, 16), view=lambda x: x.transpose(1, 2), is_causal=True)
    check(
        native,
        dtype,
        (1, 2, 16, 21),
        (1, 2, 16, 35),
        e=35,
        view=lambda x: x.transpose(2, 3) if x.shape[3] in (21, 35) else x,
        gradients=False,
    )
    check(native, dtype, (1, 2, 21, 19), (1, 2, 35, 19), view=lambda x: x[..., 1:18])
    check(native, dtype, (1, 1, 21, 16), (1, 1, 35, 16), view=lambda x: x.expand(2, 3, *x.shape[2:]), gradients=False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_empty(native, dtype):
    check(native, dtype, (1, 2, 5, 8), (1, 2, 0, 8))
    check(native, dtype, (1, 2, 0, 8), (1, 2, 5, 8))
    check(native, dtype, (0, 2, 5, 8), (0, 2, 5, 8))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_wider_than_tiles(native, dtype):
    check(native, dtype, (1, 2, 9, 300), (1, 1, 11, 300), e=270, enable_gqa=True, is_causal=True)


def test_large_scores():
    """Where rounding of the scores shows the device is as near to the true result as the CPU."""
    arrays = [draw(i, 1, 1, n, 64) for i, n in enumerate((21, 70, 70))]

    def run(kind, device):
        x = [flow.tensor(a).to(kind).to(device).requires_grad_() for a in arrays]
        y = F.scaled_dot_product_attention(*x, scale=8.0)
        return [r.detach().cpu().double().numpy() for r in (y, *flow.autograd.grad(y, x, flow.ones_like(y)))]

    for true, near, got in zip(run(flow.float64, "cpu"), run(flow.float32, "cpu"), run(flow.float32, "cuda")):
        assert np.abs(got - true).max() <= 2 * np.abs(near - true).max() + 1e-6


def on_two_ranks(device, run):
    """The parts of the results that each of two ranks has.
    Nothing is sent: what is tested is where parts take their numbers from."""
    parts = flow.run_ranks(2, lambda rank: [y.to_local().cpu() for y in run(flow.placement(device, [0, 1]))])
    return [part for rank in parts for part in rank]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("p", [0.0, 0.4])
def test_split_queries(dtype, axis, p):
    arrays = [draw(i, 2, 2, 71 + 70 * (i > 0), 16) for i in range(3)]

    def run(placement):
        flow.manual_seed(3)
        whole = flow.sbp.broadcast
        x = [flow.tensor(a, placement=placement, sbp=whole).to(getattr(flow, dtype)) for a in arrays]
        x = [a.to_global(placement, flow.sbp.split(axis) if i == 0 or axis < 2 else whole) for i, a in enumerate(x)]
        y = F.scaled_dot_product_attention(*x, is_causal=True, dropout_p=p)
        assert y.sbp == (flow.sbp.split(axis),)
        return [y]

    for want, got in zip(on_two_ranks("cpu", run), on_two_ranks("cuda", run)):
        close(got, want, dtype, "")


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize("causal", [False, True])
def test_split_keys(dtype, p, causal):
    """The backward pass with a half of the keys on each rank;
    the halves do not begin where groups of random numbers do."""
    kind = getattr(flow, dtype)
    name = "attention_dropout" if p else "attention_flash"
    draws = {"dropout_p": p, "seed": 3, "counter": 1} if p else {}
    q, k, v, dy = (flow.tensor(draw(i, 1, 2, 181, 16)).to(kind) for i in range(4))
    forward, backward = (
        flow._C.find_op_function(name),
        flow._C.find_op_function(name.replace("_flash", "") + "_backward"),
    )
    y, lse = forward(q, k, v, None, None, is_causal=causal, scale=0.25, **draws)

    def run(placement):
        parts = [
            flow.tensor(a.float().numpy(), placement=placement, sbp=flow.sbp.broadcast).to(
                lse.dtype if a is lse else kind
            )
            for a in (dy, q, k, v, y, lse)
        ]
        parts = [a.to_global(placement, flow.sbp.split(2)) if i in (2, 3) else a for i, a in enumerate(parts)]
        out = backward(*parts, None, None, is_causal=causal, scale=0.25, **draws)
        assert [o.sbp for o in out] == [(flow.sbp.partial_sum,), (flow.sbp.split(2),), (flow.sbp.split(2),)]
        return out

    for want, got in zip(on_two_ranks("cpu", run), on_two_ranks("cuda", run)):
        close(got, want, dtype, "")
