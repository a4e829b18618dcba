"""Training by nn.Graph against the same model trained eagerly: losses, parameters and buffers over 20 steps. The large
matrix is tests/cpp/graph/equality_test.cpp; here are models as users write them in Python."""

import numpy as np
import pytest

import holon as flow
from holon import nn

B, S = flow.sbp.broadcast, flow.sbp.split
STEPS, ROWS = 20, 8


class Layout:
    """dp x tp ranks to a stage, pp stages."""

    def __init__(self, dp=1, tp=1, pp=1):
        self.dp, self.tp, self.pp, self.ranks = dp, tp, pp, dp * tp * pp

    def placement(self, stage):
        ranks = np.arange(self.dp * self.tp) + stage * self.dp * self.tp
        return flow.placement("cpu", ranks.reshape(self.dp, self.tp).tolist())

    rows, whole, column, row = (S(0), B), (B, B), (B, S(0)), (B, S(1))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.column_qkv, self.row_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.column_up, self.row_down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        b, t, width = x.shape
        q, k, v = self.column_qkv(self.norm1(x)).reshape(b, t, self.heads, -1).transpose(1, 2).chunk(3, -1)
        y = flow.softmax(flow.matmul(q, k.transpose(2, 3)) * (width // self.heads) ** -0.5, -1)
        x = x + self.row_out(flow.matmul(self.dropout(y), v).transpose(1, 2).reshape(b, t, width))
        return x + self.row_down(flow.gelu(self.column_up(self.norm2(x))))


class Embed(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.words = nn.Embedding(words, width)

    def forward(self, x):
        return self.words(x)


class Gpt(nn.Module):
    """The head's weight is the embedding's, on another stage."""

    def __init__(self, layout):
        super().__init__()
        self.layout = layout
        self.stages = nn.ModuleList(
            [nn.Sequential(Embed(12, 8), Block(8, 2)), nn.Sequential(Block(8, 2), nn.LayerNorm(8))]
        )

    def forward(self, x, y):
        x = self.stages[0](x)
        last = self.layout.placement(self.layout.pp - 1)
        x = self.stages[1](x.to_global(last, self.layout.rows))
        head = self.stages[0][0].words.weight.to_global(last, self.layout.whole)
        logits = flow.matmul(x, head.transpose(0, 1)).reshape(-1, 12)
        return flow.nn.functional.cross_entropy(logits, y.to_global(last, self.layout.rows).reshape(-1))

    @staticmethod
    def data(step):
        r = np.random.default_rng(step)
        return r.integers(0, 12, (ROWS, 6)), r.integers(0, 12, (ROWS, 6))


class Convnet(nn.Module):
    """Two stages, of which the second also reads what the first has read."""

    def __init__(self, layout):
        super().__init__()
        self.layout = layout
        self.stages = nn.ModuleList(
            [
                nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Tanh(), nn.AvgPool2d(2)),
                nn.Sequential(nn.Flatten(), nn.Linear(4 * 9, 8), nn.Tanh(), nn.Linear(8, 4)),
            ]
        )

    def forward(self, x, y):
        last = self.layout.placement(self.layout.pp - 1)
        logits = self.stages[1](self.stages[0](x).to_global(last, self.layout.rows))
        logits = logits + x.to_global(last, self.layout.rows).mean(dim=(1, 2, 3)).unsqueeze(1)
        return flow.nn.functional.cross_entropy(logits, y.to_global(last, self.layout.rows))

    @staticmethod
    def data(step):
        r = np.random.default_rng(step)
        return r.standard_normal((ROWS, 1, 6, 6), np.float32), r.integers(0, 4, ROWS)


def make(kind, layout):
    flow.manual_seed(3)
    model = kind(layout)
    for i, stage in enumerate(model.stages):
        where = layout.placement(min(i, layout.pp - 1))
        stage.to_global(where, layout.whole)
        for name, p in stage.named_parameters():
            sbp = layout.column if "column" in name else layout.row if "row" in name and p.ndim == 2 else layout.whole
            p.data = p.detach().to_global(where, sbp)
    return model


def on(array, layout):
    return flow.tensor(array, placement=layout.placement(0), sbp=layout.whole).to_global(
        layout.placement(0), layout.rows
    )


def part(array, k, n, groups):
    """The rows of micro-batch k: of each data-parallel group's rows the k-th part."""
    return np.concatenate([np.split(group, n)[k] for group in np.split(array, groups)])


def result(model, losses):
    everybody = flow.placement.all("cpu")
    return losses, {name: t.to_global(everybody, B).to_local().numpy() for name, t in model.state_dict().items()}


def eager(kind, layout, options, groups):
    model, n = make(kind, layout), options.get("micro_batches", 1)
    optimizer = flow.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(STEPS):
        x, y = kind.data(step)
        total = 0
        for k in range(n):
            with flow.autocast("cpu", dtype=flow.bfloat16, enabled=options.get("amp", False)):
                loss = model(on(part(x, k, n, groups), layout), on(part(y, k, n, groups), layout))
            (loss / n).backward()
            total += loss.item() / n
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return result(model, losses)


class Train(nn.Graph):
    def __init__(self, model, layout, options):
        super().__init__()
        self.model = model
        if layout.pp > 1:
            for i, stage in enumerate(model.stages):
                stage.to(nn.graph.GraphModule).set_stage(i, layout.placement(i))
        if options.get("checkpoint"):
            for stage in model.stages:
                stage.to(nn.graph.GraphModule).activation_checkpointing = True
        self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
        self.config.set_gradient_accumulation_steps(options.get("micro_batches", 1))
        self.config.enable_amp(options.get("amp", False))
        if options.get("zero"):
            self.config.enable_zero(stage=options["zero"])
        self.config.pipeline(schedule=options.get("schedule", "1f1b"))
        self.config.verify()

    def build(self, x, y):
        loss = self.model(x, y)
        loss.backward()
        return loss


def compiled(kind, layout, options):
    model = make(kind, layout)
    train = Train(model, layout, options)
    losses = []
    for step in range(STEPS):
        x, y = kind.data(step)
        losses.append(train(on(x, layout), on(y, layout)).mean().item())
    return result(model, losses)


def expect_alike(want, got, tolerance):
    np.testing.assert_allclose(got[0], want[0], rtol=tolerance)
    assert got[1].keys() == want[1].keys()
    for name, value in want[1].items():
        np.testing.assert_allclose(got[1][name], value, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("kind", [Gpt, Convnet], ids=lambda k: k.__name__)
@pytest.mark.parametrize(
    "shape, options",
    [
        ((1, 1, 1), {"micro_batches": 4, "checkpoint": True}),
        ((2, 1, 1), {"micro_batches": 2, "zero": 2}),
        ((2, 1, 1), {"amp": True, "zero": 3, "checkpoint": True}),
        ((1, 2, 1), {"amp": True, "micro_batches": 2}),
        ((1, 1, 2), {"micro_batches": 4, "schedule": "gpipe"}),
        ((1, 1, 2), {"micro_batches": 8, "schedule": "zero_bubble", "checkpoint": True}),
        ((2, 2, 1), {"zero": 1}),
        ((2, 1, 2), {"micro_batches": 4, "zero": 3}),
        ((1, 2, 2), {"micro_batches": 2, "amp": True, "schedule": "zero_bubble"}),
        ((2, 2, 2), {"micro_batches": 2, "zero": 2, "checkpoint": True}),
    ],
    ids=str,
)
def test_graph_follows_eager(kind, shape, options):
    layout = Layout(*shape)
    got = flow.run_ranks(layout.ranks, lambda rank: compiled(kind, layout, options))[0]
    want = flow.run_ranks(layout.ranks, lambda rank: eager(kind, layout, options, layout.dp))[0]
    one = flow.run_ranks(1, lambda rank: eager(kind, Layout(), options, layout.dp))[0]
    # float32: sums in another order. bfloat16: 8 bits, and which way a number is rounded decides about 2^-9 of it.
    amp = options.get("amp")
    expect_alike(want, got, 2e-2 if amp else 5e-5)
    expect_alike(one, got, 5e-2 if amp else 2e-4)
