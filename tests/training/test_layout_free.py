"""deterministic(layout_free=True): the same bits of all parameters after 20 steps on every layout of 1, 2, 4 and 8
ranks into data, tensor and pipeline parallel ones, with optimizers, gradients and parameters in shards (ZeRO)."""

import itertools

import numpy as np
import pytest

import holon as flow
from holon import nn

B, S = flow.sbp.broadcast, flow.sbp.split
STEPS = 20
DP, _, PP = range(3)


class Layout:
    """dp x tp ranks to a stage, pp stages."""

    def __init__(self, dp=1, tp=1, pp=1):
        self.dp, self.tp, self.pp, self.ranks = dp, tp, pp, dp * tp * pp

    def placement(self, stage):
        ranks = np.arange(self.dp * self.tp) + stage * self.dp * self.tp
        return flow.placement("cpu", ranks.reshape(self.dp, self.tp).tolist())

    rows, whole, column, row = (S(0), B), (B, B), (B, S(0)), (B, S(1))


class Mlp(nn.Module):
    """Eight products, so that each of eight stages has one."""

    def __init__(self, layout):
        super().__init__()
        self.layout = layout
        parts = []
        for i in range(4):
            last = i == 3
            column, row = nn.Linear(48, 96), nn.Linear(96, 10 if last else 48)
            parts += [nn.Sequential(), nn.Sequential()]
            parts[-2].column, parts[-1].row = column, row
            parts[-2].act = nn.Tanh()
        self.stages = nn.ModuleList(parts)

    def forward(self, x, y):
        return nn.functional.cross_entropy(along(self, x), to_last(self, y))

    @staticmethod
    def data(step):
        r = np.random.default_rng(step)
        return r.standard_normal((128, 48), np.float32), r.integers(0, 10, 128)


class Embed(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.positions = nn.Embedding(32, 32), nn.Parameter(flow.randn(12, 32) * 0.1)

    def forward(self, x):
        return self.words(x) + self.positions


class Block(nn.Module):
    def __init__(self, width=32, heads=8):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.column_qkv, self.row_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.column_up, self.row_down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        b, t, width = x.shape
        q, k, v = self.column_qkv(self.norm1(x)).reshape(b, t, self.heads, -1).transpose(1, 2).chunk(3, -1)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.row_out(y.transpose(1, 2).reshape(b, t, width))
        return x + self.row_down(flow.gelu(self.column_up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """The head's weight is the embedding's, on another stage."""

    def __init__(self, layout):
        super().__init__()
        self.layout = layout
        self.stages = nn.ModuleList([Embed(), *(Block() for _ in range(6)), nn.LayerNorm(32)])

    def forward(self, x, y):
        x = along(self, x)
        last = self.layout.placement(self.layout.pp - 1)
        head = self.stages[0].words.weight.to_global(last, self.layout.whole)
        logits = flow.matmul(x, head.transpose(0, 1)).reshape(-1, 32)
        return nn.functional.cross_entropy(logits, to_last(self, y).reshape(-1))

    @staticmethod
    def data(step):
        r = np.random.default_rng(step)
        return r.integers(0, 32, (16, 12)), r.integers(0, 32, (16, 12))


class Cnn(nn.Module):
    def __init__(self, layout):
        super().__init__()
        self.layout = layout

        def conv(i, o, stride=1):
            part = nn.Sequential()
            part.column = nn.Conv2d(i, o, 3, stride=stride, padding=1)
            part.act = nn.ReLU()
            return part

        tail = nn.Sequential(nn.Flatten(), nn.Linear(16 * 9, 4))
        self.stages = nn.ModuleList(
            [conv(1, 8), conv(8, 8), conv(8, 16), nn.MaxPool2d(2), conv(16, 16), conv(16, 16, 2), nn.Tanh(), tail]
        )

    def forward(self, x, y):
        return nn.functional.cross_entropy(along(self, x), to_last(self, y))

    @staticmethod
    def data(step):
        r = np.random.default_rng(step)
        return r.standard_normal((128, 1, 12, 12), np.float32), r.integers(0, 4, 128)


def stage_of(model, i):
    return i * model.layout.pp // len(model.stages)


def along(model, x):
    for i, stage in enumerate(model.stages):
        where = model.layout.placement(stage_of(model, i))
        x = stage(x if x.placement == where else x.to_global(where, model.layout.rows))
    return x


def to_last(model, y):
    return y.to_global(model.layout.placement(model.layout.pp - 1), model.layout.rows)


def make(kind, layout):
    flow.manual_seed(3)
    model = kind(layout)
    for i, stage in enumerate(model.stages):
        where = layout.placement(stage_of(model, i))
        stage.to_global(where, layout.whole)
        for name, p in stage.named_parameters():
            sbp = layout.column if "column" in name else layout.row if "row" in name and p.ndim == 2 else layout.whole
            p.data = p.detach().to_global(where, sbp)
    return model


def on(array, layout):
    where = layout.placement(0)
    return flow.tensor(array, placement=where, sbp=layout.whole).to_global(where, layout.rows)


def bits(model):
    """Of each parameter, as every rank has them."""
    everybody = flow.placement.all("cpu")
    return {
        name: p.detach().to_global(everybody, B).to_local().numpy().view(np.uint32)
        for name, p in model.named_parameters()
    }


def optimizer_of(model):
    groups = [{"params": list(model.parameters()), "clip_grad_max_norm": 0.5, "clip_grad_norm_type": 2.0}]
    return flow.optim.AdamW(groups, lr=0.01, weight_decay=0.01)


class Train(nn.Graph):
    def __init__(self, model, micro_batches, zero):
        super().__init__()
        self.model = model
        if model.layout.pp > 1:
            for i, stage in enumerate(model.stages):
                at = stage_of(model, i)
                stage.to(nn.graph.GraphModule).set_stage(at, model.layout.placement(at))
        self.add_optimizer(optimizer_of(model))
        self.config.set_gradient_accumulation_steps(micro_batches)
        if zero:
            self.config.enable_zero(stage=zero)
        self.config.verify()

    def build(self, x, y):
        loss = self.model(x, y)
        loss.backward()
        return loss


def compiled(kind, layout, micro_batches, zero, steps):
    model = make(kind, layout)
    train = Train(model, micro_batches, zero)
    for step in range(steps):
        train(*(on(a, layout) for a in kind.data(step)))
    return bits(model)


def eager(kind, layout, steps):
    model = make(kind, layout)
    optimizer = optimizer_of(model)
    for step in range(steps):
        model(*(on(a, layout) for a in kind.data(step))).backward()
        optimizer.clip_grad()
        optimizer.step()
        optimizer.zero_grad()
    return bits(model)


def run(kind, shape, micro_batches=0, zero=0, steps=STEPS):
    """0 micro-batches: eagerly."""
    layout = Layout(*shape)

    def on_rank(rank):
        with flow.deterministic(layout_free=True):
            if micro_batches:
                return compiled(kind, layout, micro_batches, zero, steps)
            return eager(kind, layout, steps)

    return flow.run_ranks(layout.ranks, on_rank)


_one = {}


def one_rank(kind):
    if kind not in _one:
        _one[kind] = run(kind, (1, 1, 1))[0]
    return _one[kind]


def expect_same(kind, results):
    want = one_rank(kind)
    for rank, found in enumerate(results):
        assert found.keys() == want.keys()
        for name, value in want.items():
            different = int((found[name] != value).sum())
            assert different == 0, f"{name} on rank {rank}: {different} of {value.size} elements have other bits"


def factorings(ranks):
    powers = [1 << i for i in range(ranks.bit_length())]
    return [s for s in itertools.product(powers, repeat=3) if s[0] * s[1] * s[2] == ranks]


def cases():
    """(dp, tp, pp), micro-batches, ZeRO's stage; 0 micro-batches is eager."""
    for ranks in (1, 2, 4, 8):
        for shape in factorings(ranks):
            slow = [pytest.mark.slow] if ranks == 8 else []
            if shape[PP] == 1:
                yield pytest.param(shape, 0, 0, marks=slow)
            for zero in range(4 if shape[DP] > 1 else 1):
                yield pytest.param(shape, max(2, min(shape[PP], 4)), zero, marks=slow)
    yield pytest.param((1, 1, 1), 1, 0)
    yield pytest.param((2, 1, 1), 4, 2)


@pytest.mark.parametrize("kind", [Mlp, Gpt, Cnn], ids=lambda k: k.__name__)
@pytest.mark.parametrize("shape, micro_batches, zero", list(cases()), ids=str)
def test_every_layout_has_the_same_bits(kind, shape, micro_batches, zero):
    expect_same(kind, run(kind, shape, micro_batches, zero))


def refused(function, ranks=2, error=(ValueError, TypeError, RuntimeError)):
    def on_rank(rank):
        with flow.deterministic(layout_free=True):
            with pytest.raises(error) as raised:
                function()
            return str(raised.value)

    return flow.run_ranks(ranks, on_rank)[0]


def test_a_rank_without_the_mode_is_an_error():
    def on_rank(rank):
        x = flow.ones(4, placement=flow.placement("cpu", [0, 1]), sbp=flow.sbp.split(0))
        with flow.deterministic(layout_free=rank == 1):
            return x.to_global(sbp=B).numpy()

    with pytest.raises(RuntimeError, match=r"all_gather.*layout_free|layout_free.*all_gather"):
        flow.run_ranks(2, on_rank)


def test_the_mode_ends_with_its_block():
    def on_rank(rank):
        before = flow._C.layout_free()
        with flow.deterministic(layout_free=True) as mode, mode:
            inside = flow._C.layout_free()
        after = flow._C.layout_free()

        @flow.deterministic(layout_free=True)
        def decorated():
            return flow._C.layout_free()

        alone = flow._C.layout_free()
        called = decorated()
        flow.deterministic(layout_free=True)
        plain = flow._C.layout_free()
        flow.deterministic()
        return before, inside, after, alone, called, plain, flow._C.layout_free()

    assert flow.run_ranks(1, on_rank) == [(False, True, False, False, True, True, False)]


def place(shape, sbp, dtype=flow.float32):
    return flow.ones(*shape, placement=flow.placement("cpu", [0, 1]), sbp=sbp, dtype=dtype)


def test_what_is_not_covered_is_refused():
    assert "autocast" in refused(lambda: flow.autocast("cpu", dtype=flow.bfloat16).__enter__())
    assert "linear of bfloat16" in refused(
        lambda: nn.functional.linear(place((16, 8), S(0), flow.bfloat16), place((4, 8), B, flow.bfloat16))
    )

    def norm(norm_type):
        x = place((8,), S(0)).requires_grad_()
        x.sum().backward()
        nn.utils.clip_grad_norm_([x], 1.0, norm_type)

    assert "norm_type 1" in refused(lambda: norm(1.0))
    assert "norm_type 3" in refused(lambda: norm(3.0))

    def lamb():
        x = place((8,), S(0)).requires_grad_()
        x.sum().backward()
        flow.optim.LAMB([x], lr=0.1).step()

    assert "LAMB" in refused(lamb)


@pytest.mark.parametrize(
    "shape, micro_batches, said",
    [((1, 1, 1), 3, "power of two"), ((1, 1, 1), 32, "too few"), ((2, 1, 1), 16, "rows of the ranks together")],
)
def test_micro_batches_that_are_not_the_batch_are_refused(shape, micro_batches, said):
    layout = Layout(*shape)

    class Small(Mlp):
        @staticmethod
        def data(step):
            x, y = Mlp.data(step)
            return (x[:96], y[:96]) if micro_batches == 3 else (x, y)

    assert said in refused(lambda: compiled(Small, layout, micro_batches, 0, 1), layout.ranks)


def test_a_scaled_weight_is_refused_with_micro_batches():
    class Scaled(nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = nn.Linear(8, 8, bias=False)
            self.add_optimizer(flow.optim.SGD(self.model.parameters(), lr=0.1))
            self.config.set_gradient_accumulation_steps(2)

        def build(self, x):
            loss = nn.functional.linear(x, self.model.weight * 0.3).sum()
            loss.backward()
            return loss

    assert "made by mul" in refused(lambda: Scaled()(flow.ones(32, 8)), 1)


@pytest.mark.parametrize("ranks", [3, 4])
def test_parts_that_are_no_subtrees_are_gathered(ranks):
    """Of 3 ranks, and of too few rows: the same bits all the same."""

    def on_rank(rank):
        with flow.deterministic(layout_free=True):
            flow.manual_seed(0)
            where = flow.placement("cpu", list(range(ranks)))
            x = flow.randn(7, 20, placement=where, sbp=B).to_global(sbp=S(0)).requires_grad_()
            w = flow.randn(20, 9, placement=where, sbp=B, requires_grad=True)
            y = flow.matmul(x, w)
            (y * y).sum().backward()
            return [t.detach().full_value().numpy() for t in (y, x.grad, w.grad)]

    want = flow.run_ranks(1, lambda rank: one_rank_of(7, 20, 9))[0]
    for found in flow.run_ranks(ranks, on_rank):
        for a, b in zip(found, want):
            assert (a == b).all()


def one_rank_of(rows, inner, columns):
    with flow.deterministic(layout_free=True):
        flow.manual_seed(0)
        where = flow.placement("cpu", [0])
        x = flow.randn(rows, inner, placement=where, sbp=B, requires_grad=True)
        w = flow.randn(inner, columns, placement=where, sbp=B, requires_grad=True)
        y = flow.matmul(x, w)
        (y * y).sum().backward()
        return [t.detach().full_value().numpy() for t in (y, x.grad, w.grad)]
