"""deterministic(layout_free=True): the same bits of all parameters after 20 steps on every layout of 1, 2, 4 and 8
ranks into data, tensor and pipeline parallel ones, with optimizers, gradients and parameters in shards (ZeRO)."""

import itertools

import numpy as np
import pytest

import holon as flow
from holon import nn

B, S = flow.sbp.broadcast, flow.sbp.split
STEPS = 20
DP, TP, PP = range(3)


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
@pytest.mark.parametrize("shape, micro_batches, zero", cases(), ids=str)
def test_every_layout_has_the_same_bits(kind, shape, micro_batches, zero):
    expect_same(kind, run(kind, shape, micro_batches, zero))
