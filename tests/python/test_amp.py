"""Mixed precision: which ops run in what, gradients through the casts, and the scaling of losses."""

import math

import numpy as np
import pytest

import holon
from holon import amp, nn, optim

F32, BF16, F16, F64 = holon.float32, holon.bfloat16, holon.float16, holon.float64


@pytest.mark.parametrize("low", [BF16, F16], ids=["bfloat16", "float16"])
def test_dtypes_of_results(low):
    x, w, b = holon.randn(4, 6), holon.randn(5, 6), holon.randn(5)
    image, kernel = holon.randn(2, 3, 8, 8), holon.randn(4, 3, 3, 3)
    target = holon.tensor([0, 1, 2, 3])
    with holon.autocast("cpu", dtype=low):
        y = holon.matmul(x, w.transpose(0, 1))
        assert y.dtype == low
        assert (x @ w.transpose(0, 1)).dtype == low
        assert nn.functional.linear(x, w, b).dtype == low
        assert holon.conv2d(image, kernel).dtype == low
        assert holon.matmul(x.to(low), w.transpose(0, 1)).dtype == low
        for same in (holon.relu(y), y + 1, y * 2, y.reshape(-1), y.transpose(0, 1)):
            assert same.dtype == low
        assert (y + b).dtype == F32
        for wide in (
            holon.softmax(y, -1),
            holon.log_softmax(y, -1),
            y.sum(),
            y.mean(0),
            y.exp(),
            nn.functional.cross_entropy(y, target),
            nn.functional.mse_loss(y, y),
            nn.functional.layer_norm(y, (5,)),
        ):
            assert wide.dtype == F32
        assert holon.cat([y, x], 1).dtype == F32
        assert holon.matmul(x.to(F64), w.to(F64).transpose(0, 1)).dtype == F64
        assert holon.tensor([1, 2]).sum().dtype == holon.int64
    assert holon.matmul(x, w.transpose(0, 1)).dtype == F32


@pytest.mark.parametrize("low", [F16, BF16])
@pytest.mark.parametrize("options", [{}, {"reduction": "sum", "label_smoothing": 0.1}, {"weight": [1.0, 2.0, 0.5]}])
def test_cross_entropy_reads_two_byte_logits(low, options):
    """As float32 logits with the same values, without a float32 copy of them: the loss has the same bits, and the
    gradient those of its values rounded."""
    options = {k: holon.tensor(v) if k == "weight" else v for k, v in options.items()}
    target = holon.tensor([0, 2, 1, 1])
    values = holon.randn(4, 3).to(low)
    with holon.autocast(dtype=low):
        x = values.detach().requires_grad_()
        loss = nn.functional.cross_entropy(x, target, **options)
        loss.backward()
    wide = values.float().requires_grad_()
    wanted = nn.functional.cross_entropy(wide, target, **options)
    wanted.backward()
    assert loss.dtype == F32 and loss.item() == wanted.item()
    assert x.grad.dtype == low and x.grad.tolist() == wide.grad.to(low).tolist()


def test_regions_nest_and_decorate():
    x = holon.ones(4, 4)

    @holon.amp.autocast(dtype=F16)
    def product(a):
        return a @ a

    assert product(x).dtype == F16 and not amp.is_autocast_enabled()
    with holon.autocast():
        assert amp.is_autocast_enabled() and amp.get_autocast_dtype() == BF16
        with holon.autocast(dtype=F16):
            assert (x @ x).dtype == F16
            with holon.autocast(enabled=False):
                assert (x @ x).dtype == F32
            assert (x @ x).dtype == F16
        assert (x @ x).dtype == BF16
        with pytest.raises(ZeroDivisionError):
            with holon.autocast(dtype=F16):
                1 / 0
        assert (x @ x).dtype == BF16
    assert (x @ x).dtype == F32
    for wrong in ({"dtype": F32}, {"device_type": "tpu"}):
        with pytest.raises(ValueError, match="must be"):
            holon.autocast(**wrong)
    with pytest.raises(TypeError, match="generator"):

        @holon.autocast()
        def numbers():
            yield 1


def test_regions_belong_to_a_rank():
    x = holon.ones(4, 4)

    def program(rank):
        with holon.autocast(enabled=rank == 0):
            holon.comm.barrier()
            product = x @ x
            holon.comm.barrier()
        return product.dtype

    assert holon.run_ranks(2, program) == [BF16, F32]


def test_gradients_reach_float32_parameters():
    w, b = nn.Parameter(holon.randn(5, 6)), nn.Parameter(holon.zeros(5))
    x = holon.randn(4, 6)
    with holon.autocast():
        y = nn.functional.linear(x, w, b)
        loss = (y * y).mean()
    assert loss.dtype == F32
    loss.backward()
    assert w.grad.dtype == b.grad.dtype == F32
    plain = w.detach().clone().requires_grad_()
    other = nn.functional.linear(x, plain, holon.zeros(5))
    (other * other).mean().backward()
    np.testing.assert_allclose(w.grad.numpy(), plain.grad.numpy(), rtol=0.05, atol=0.02)


def test_casts_of_parameters_are_kept_within_a_region():
    w, x = nn.Parameter(holon.randn(8, 8)), holon.randn(8, 8)
    with holon.autocast():
        with holon.no_grad():
            first = x @ w
        second, third = x @ w, x @ w
        assert first.grad_fn is None
        # The same cast node: matmul's second input.
        edges = [t.grad_fn.next_functions[1][0] for t in (second, third)]
        assert edges[0] == edges[1] and edges[0].name == "cast"
        second.sum().backward()
        before = w.grad.clone()
        (x @ w).sum().backward()  # after a backward that freed the nodes
        np.testing.assert_array_equal(w.grad.numpy(), 2 * before.numpy())
        with holon.no_grad():
            w.zero_()
        assert (x @ w).abs().sum().item() == 0.0
    with holon.autocast(cache_enabled=False):
        a, b = x @ w, x @ w
        assert a.grad_fn.next_functions[1][0] != b.grad_fn.next_functions[1][0]


def test_backward_in_the_region_is_that_outside():
    def gradient(inside):
        holon.manual_seed(3)
        model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
        x, t = holon.randn(5, 8), holon.tensor([0, 1, 2, 3, 0])
        with holon.autocast():
            loss = nn.functional.cross_entropy(model(x), t)
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        return [p.grad.numpy() for p in model.parameters()]

    for a, b in zip(gradient(True), gradient(False)):
        np.testing.assert_array_equal(a, b)


def train(enabled, ranks=1, low=BF16, scaler=None):
    def program(rank):
        holon.manual_seed(1)
        where = {"placement": holon.placement.all("cpu"), "sbp": holon.sbp.broadcast} if ranks > 1 else {}
        model = nn.Sequential(nn.Linear(12, 32, **where), nn.ReLU(), nn.Linear(32, 4, **where))
        optimizer, losses = optim.AdamW(model.parameters(), lr=0.01), []
        rng = np.random.default_rng(0)
        for _ in range(30):
            x, t = rng.normal(size=(16, 12)).astype(np.float32), rng.integers(0, 4, 16)
            x[:, 0] += t
            spread = {"placement": holon.placement.all("cpu"), "sbp": holon.sbp.split(0)} if ranks > 1 else {}
            with holon.autocast(dtype=low, enabled=enabled):
                loss = nn.functional.cross_entropy(model(holon.tensor(x, **spread)), holon.tensor(t, **spread))
            optimizer.zero_grad()
            if scaler:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            else:
                loss.backward()
                optimizer.step()
            losses.append(loss.item())
        assert all(p.dtype == F32 for p in model.parameters())
        return losses

    return holon.run_ranks(ranks, program)[0] if ranks > 1 else program(0)


def test_training_follows_float32():
    exact, low = train(False), train(True)
    assert low == train(True)
    np.testing.assert_allclose(low, exact, rtol=0.03, atol=0.02)
    assert low[-1] < low[0] and low != exact
    np.testing.assert_allclose(train(True, ranks=2), low, rtol=0.02, atol=0.01)
    np.testing.assert_allclose(
        train(True, low=F16, scaler=amp.GradScaler(init_scale=1024.0)), exact, rtol=0.01, atol=0.005
    )


def test_scaler_scales_and_unscales():
    p = nn.Parameter(holon.tensor([1.0, 2.0]))
    optimizer, scaler = optim.SGD([p], lr=1.0), amp.GradScaler(init_scale=8.0, growth_interval=2)
    for expected_scale in (8.0, 16.0):
        optimizer.zero_grad()
        loss = scaler.scale((p * 0.25).sum())
        loss.backward()
        assert p.grad.tolist() == [0.25 * scaler.get_scale()] * 2
        scaler.unscale_(optimizer)
        assert p.grad.tolist() == [0.25, 0.25]
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == expected_scale
    assert p.tolist() == [0.5, 1.5]
    assert [t.item() for t in scaler.scale((holon.tensor(1.0), holon.tensor(2.0)))] == [16.0, 32.0]


def test_overflow_leaves_the_step_out():
    p = nn.Parameter(holon.tensor([1.0]))
    optimizer, scaler = optim.SGD([p], lr=1.0), amp.GradScaler(init_scale=4.0)
    for bad in (math.inf, -math.inf, math.nan):
        p.grad = holon.tensor([bad])
        before = scaler.get_scale()
        assert scaler.step(optimizer) is None
        scaler.update()
        assert p.tolist() == [1.0] and scaler.get_scale() == before / 2
    fixed = amp.StaticGradScaler(128.0)
    p.grad = holon.tensor([math.inf])
    fixed.step(optimizer)
    fixed.update()
    assert p.tolist() == [1.0] and fixed.get_scale() == 128.0


def test_ranks_agree_on_overflow():
    def program(rank):
        everywhere = holon.placement.all("cpu")
        p = nn.Parameter(holon.ones(4, placement=everywhere, sbp=holon.sbp.split(0)))
        q = nn.Parameter(holon.ones(2))
        values = np.zeros(4, np.float32)
        values[0] = np.inf  # on rank 0 alone
        p.grad = holon.tensor(values, placement=everywhere, sbp=holon.sbp.split(0))
        q.grad = holon.ones(2)
        optimizer, scaler = optim.SGD([p, q], lr=1.0), amp.GradScaler(init_scale=4.0)
        scaler.step(optimizer)
        scaler.update()
        return scaler.get_scale(), q.tolist()

    assert holon.run_ranks(2, program) == [(2.0, [1.0, 1.0])] * 2


def test_scaler_state_and_mistakes():
    p = nn.Parameter(holon.tensor([1.0]))
    optimizer, scaler = optim.SGD([p], lr=1.0), amp.GradScaler(init_scale=4.0, growth_interval=7)
    p.grad = holon.tensor([1.0])
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="twice"):
        scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="twice"):
        scaler.unscale_(optimizer)
    scaler.update()
    with pytest.raises(RuntimeError, match="before any step"):
        scaler.update()
    with pytest.raises(RuntimeError, match="closure"):
        scaler.step(optimizer, closure=lambda: None)
    other = amp.GradScaler()
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict() == scaler.state_dict() and other.state_dict()["_growth_tracker"] == 1
    with pytest.raises(RuntimeError, match="growth_factor"):
        other.load_state_dict({"scale": 1.0})
    for wrong in ({"growth_factor": 1.0}, {"backoff_factor": 1.0}, {"init_scale": 0.0}):
        with pytest.raises(ValueError, match="GradScaler"):
            amp.GradScaler(**wrong)
    off = amp.GradScaler(enabled=False)
    assert off.scale(p) is p and off.state_dict() == {} and off.get_scale() == 1.0
    off.step(optimizer)
    off.update()
    assert p.tolist() == [0.5]


def test_custom_function_in_float32():
    class Product(holon.autograd.Function):
        @staticmethod
        @amp.custom_fwd(cast_inputs=F32)
        def forward(ctx, x):
            ctx.save_for_backward(x)
            assert not amp.is_autocast_enabled()
            return x @ x

        @staticmethod
        @amp.custom_bwd
        def backward(ctx, dy):
            return dy

    with holon.autocast():
        assert Product.apply(holon.ones(3, 3).to(BF16)).dtype == F32


def test_a_large_product_in_bfloat16():
    rng = np.random.default_rng(1)
    for shape_a, shape_b in [
        ((64, 96), (96, 80)),
        ((3, 40, 64), (64, 48)),
        ((3, 40, 64), (3, 64, 48)),
        ((2, 3, 40, 64), (2, 3, 64, 48)),
    ]:
        a = holon.tensor(rng.normal(size=shape_a).astype(np.float32)).to(BF16)
        b = holon.tensor(rng.normal(size=shape_b).astype(np.float32)).to(BF16)
        want = a.to(F32).numpy() @ b.to(F32).numpy()
        np.testing.assert_allclose(holon.matmul(a, b).to(F32).numpy(), want, rtol=1e-2, atol=1e-2)
        turned = b.transpose(-1, -2).contiguous().transpose(-1, -2)
        np.testing.assert_allclose(holon.matmul(a, turned).to(F32).numpy(), want, rtol=1e-2, atol=1e-2)
    x, w, bias = (holon.tensor(rng.normal(size=s).astype(np.float32)).to(BF16) for s in ((5, 32, 64), (48, 64), (48,)))
    want = x.to(F32).numpy() @ w.to(F32).numpy().T + bias.to(F32).numpy()
    np.testing.assert_allclose(nn.functional.linear(x, w, bias).to(F32).numpy(), want, rtol=1e-2, atol=1e-2)
