"""Convolutions and attention left to a library: what it is given and what is left to the backend's own kernels, by its
counterpart on the emulator; on a device, the same calls by cuDNN."""

import ctypes
import os

import numpy as np
import pytest

import holon as flow

F = flow.nn.functional
EMULATED = os.environ.get("HOLON_CUDA_LIBRARY", "").endswith("emulated.so")
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 4e-6, "float64": 1e-13}


@pytest.fixture
def runs():
    """How many runs the library has done since the fixture began or was last asked; None on a device, which does not
    tell."""
    if not EMULATED:
        yield lambda: None
        return
    library = ctypes.CDLL(os.environ["HOLON_CUDA_LIBRARY"])
    library.emulated_dnn_runs.restype = ctypes.c_long
    before = 0

    def count():
        nonlocal before
        now = library.emulated_dnn_runs()
        before, done = now, now - before
        return done

    library.emulated_dnn(1)
    yield count
    library.emulated_dnn(0)


def draw(seed, *shape):
    return np.random.RandomState(seed).randn(*shape)


def close(got, want, dtype, what):
    got, want = got.double().cpu().numpy(), want.double().cpu().numpy()
    assert got.shape == want.shape
    bound = TOLERANCE[dtype] * max(1.0, np.abs(want).max(initial=0))
    np.testing.assert_allclose(got, want, rtol=0, atol=bound, err_msg=what)


def attend(device, dtype, q, kv, e=None, view=None, seed=None, **options):
    """The result and the gradients."""
    kind = getattr(flow, dtype)
    shapes = (q, kv, (*kv[:-1], e or kv[-1]))
    leaves = [flow.tensor(draw(i, *s)).to(kind).to(device).requires_grad_() for i, s in enumerate(shapes)]
    if seed is not None:
        flow.manual_seed(seed)
    y = F.scaled_dot_product_attention(*([view(x) for x in leaves] if view else leaves), **options)
    dy = flow.tensor(draw(9, *y.shape)).to(kind).to(device)
    return [y, *flow.autograd.grad(y, leaves, dy)]


def check(native, runs, count, dtype, q, kv, **options):
    want = attend("cpu", dtype, q, kv, **options)
    runs()
    with native():
        got = attend("cuda", dtype, q, kv, **options)
    assert runs() in (None, count)
    for name, x, y in zip(("out", "dq", "dk", "dv"), got, want):
        close(x, y, dtype, name)


HALVES = ["float16", "bfloat16"]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d, e", [(64, 64), (128, 96), (8, 8)])
def test_attention(native, runs, dtype, causal, d, e):
    check(native, runs, 2, dtype, (2, 4, 64, d), (2, 4, 128, d), e=e, is_causal=causal)


@pytest.mark.parametrize("dtype", HALVES)
def test_grouped_queries(native, runs, dtype):
    check(native, runs, 2, dtype, (2, 6, 128, 32), (2, 2, 64, 32), enable_gqa=True, is_causal=True)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("window", [1, 20, 63, 200])
def test_windows(native, runs, dtype, window):
    check(native, runs, 2, dtype, (1, 2, 64, 16), (1, 2, 64, 16), is_causal=True, window=window)


def test_axes_in_any_order_and_elements_at_any_place(native, runs):
    """[b, t, h, d], as linear layers leave it, is taken as it is; what vectors cannot read is copied."""
    check(
        native, runs, 2, "bfloat16", (2, 64, 3, 16), (2, 128, 3, 16), view=lambda x: x.transpose(1, 2), is_causal=True
    )
    check(native, runs, 2, "bfloat16", (1, 2, 64, 19), (1, 2, 128, 19), view=lambda x: x[..., 1:17])
    check(native, runs, 2, "bfloat16", (1, 1, 64, 16), (1, 1, 64, 16), view=lambda x: x.expand(2, 3, *x.shape[2:]))


def test_result_has_the_axes_of_the_queries(runs):
    q, k, v = (flow.tensor(draw(i, 2, 64, 3, 16)).bfloat16().cuda().transpose(1, 2) for i in range(3))
    y = F.scaled_dot_product_attention(q, k, v)
    assert runs() in (None, 1) and y.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize(
    "options",
    [
        dict(dropout_p=0.3, seed=4),
        dict(attn_mask=True),
        dict(document_ids=True),
        dict(q=(1, 2, 64, 20), kv=(1, 2, 64, 20)),
        dict(q=(1, 2, 60, 16)),
        dict(kv=(1, 2, 65, 16)),
        dict(dtype="float32"),
        dict(dtype="float64"),
        dict(q=(1, 2, 128, 16), is_causal=True, window=10),
    ],
    ids=lambda o: " ".join(o),
)
def test_what_is_left_to_own_kernels(native, runs, options):
    options = {"dtype": "bfloat16", "q": (1, 2, 64, 16), "kv": (1, 2, 64, 16), **options}
    seen = np.tril(np.ones((64, 64), bool))
    results = []
    for device in ("cpu", "cuda"):
        given = dict(options)
        if "attn_mask" in given:
            given["attn_mask"] = flow.tensor(seen).to(device)
        if "document_ids" in given:
            given["document_ids"] = flow.tensor(np.arange(64)[None] // 15).to(device)
        results.append(attend(device, **given))
    assert runs() in (None, 0)
    for name, want, got in zip(("out", "dq", "dk", "dv"), *results):
        close(got, want, options["dtype"], name)


def test_gradient_that_the_library_has_no_way_for(native, runs):
    """The forward pass leaves what the backend's own backward pass needs."""
    check(native, runs, 1 if EMULATED else None, "bfloat16", (1, 2, 64, 256), (1, 2, 64, 256), is_causal=True)


def test_queries_that_are_split_over_ranks(runs):
    """The second rank's queries see the keys before its own, too."""
    arrays = [draw(i, 1, 2, 128, 16) for i in range(3)]

    def run(device):
        def on_rank(rank):
            placement = flow.placement(device, [0, 1])
            x = [flow.tensor(a, placement=placement, sbp=flow.sbp.broadcast).to(flow.bfloat16) for a in arrays]
            q = x[0].to_global(placement, flow.sbp.split(2))
            y = F.scaled_dot_product_attention(q, *x[1:], is_causal=True)
            assert y.sbp == (flow.sbp.split(2),)
            return y.to_local().cpu()

        return flow.run_ranks(2, on_rank)

    want, got = run("cpu"), run("cuda")
    assert runs() in (None, 2)
    for x, y in zip(got, want):
        close(x, y, "bfloat16", "")


def test_setting(runs):
    assert flow.backends.cudnn.enabled
    x = flow.tensor(draw(1, 1, 2, 64, 16)).bfloat16().cuda()
    try:
        flow.backends.cudnn.enabled = False
        F.scaled_dot_product_attention(x, x, x)
        F.conv2d(x, x[:, :, :3, :3])
        assert runs() in (None, 0)
    finally:
        flow.backends.cudnn.enabled = True
    F.scaled_dot_product_attention(x, x, x)
    F.conv2d(x, x[:, :, :3, :3])
    assert runs() in (None, 2)


CONVOLUTIONS = {
    "3x3": dict(x=(2, 4, 7, 6), w=(5, 4, 3, 3), padding=1),
    "stride and dilation": dict(x=(2, 3, 11, 10), w=(4, 3, 3, 2), stride=(2, 1), padding=(2, 1), dilation=(2, 3)),
    "groups": dict(x=(2, 6, 5, 4), w=(4, 3, 3, 3), padding=1, groups=2),
    "uneven padding": dict(x=(1, 2, 5, 6), w=(3, 2, 2, 3), padding=(0, 1, 2, 3)),
    "three axes": dict(x=(2, 4, 4, 5, 6), w=(6, 2, 2, 3, 3), stride=(1, 2, 1), padding=(1, 0, 2), groups=2),
}


def channels_last(x):
    order = (0, *range(2, x.ndim), 1)
    return x.permute(*order).contiguous().permute(0, x.ndim - 1, *range(1, x.ndim - 1))


LAYOUTS = {
    "planar": lambda x: x.contiguous(),
    "channels last": channels_last,
    "misaligned": lambda x: flow.cat([x[..., :1], x], -1)[..., 1:],
}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(native, runs, name, layout, dtype):
    case = CONVOLUTIONS[name]
    kind = getattr(flow, dtype)
    shapes = (case["x"], case["w"], case["w"][:1])
    f = F.conv2d if len(case["x"]) == 4 else F.conv3d
    options = {k: v for k, v in case.items() if k not in "xw"}
    results = []
    for device in ("cpu", "cuda"):
        leaves = [flow.tensor(draw(i, *s)).to(kind).to(device) for i, s in enumerate(shapes)]
        leaves[0] = LAYOUTS[layout](leaves[0])
        leaves = [x.detach().requires_grad_() for x in leaves]
        runs()
        for bias in (None, leaves[2]):
            y = f(leaves[0], leaves[1], bias, **options)
        dy = LAYOUTS[layout](flow.tensor(draw(9, *y.shape)).to(kind).to(device))
        with native():
            results.append([y, *flow.autograd.grad(y, leaves, dy)])
        # two results and two gradients
        assert runs() in (None, 0 if device == "cpu" or name == "uneven padding" else 4)
    for what, want, got in zip(("y", "dx", "dw", "db"), *results):
        close(got, want, dtype, what)


def test_recorded_steps(runs):
    """The first step runs, the second is recorded, and the third launches the recording."""
    kind = flow.bfloat16
    q, image, w = (
        flow.tensor(draw(i, *s)).to(kind).cuda() for i, s in enumerate([(1, 2, 64, 16), (2, 8, 6, 6), (8, 8, 3, 3)])
    )

    def step(q, image):
        y = F.scaled_dot_product_attention(q, q, q, is_causal=True)
        return y * 2, F.conv2d(image, w, padding=1)

    class Steps(flow.nn.Graph):
        def build(self, q, image):
            return step(q, image)

    want = step(q, image)
    graph = Steps()
    runs()
    for n in range(3):
        got = graph(q, image)
        assert runs() in (None, 2 if n < 2 else 0)
        for x, y in zip(got, want):
            assert (x == y).all().item()
    assert graph.stats()["recorded"] == 1
