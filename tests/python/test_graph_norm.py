"""Residuals and norms as one instruction of a graph: they are in the plan of a GPT, and its training equals eager's."""

import numpy as np
import pytest

import holon
from holon import nn, optim

B, S0, S1 = holon.sbp.broadcast, holon.sbp.split(0), holon.sbp.split(1)
WORDS, WIDTH, HEADS, LENGTH, ROWS, STEPS = 40, 16, 2, 8, 4, 6


class Block(nn.Module):
    def __init__(self, norm, dropout):
        super().__init__()
        self.n1, self.n2, self.drop = norm(WIDTH), norm(WIDTH), nn.Dropout(dropout)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, c = x.shape
        h = self.n1(x)
        q, k, v = (f(h).reshape(b, t, HEADS, c // HEADS).transpose(1, 2) for f in (self.q, self.k, self.v))
        weights = nn.functional.softmax(holon.matmul(q, k.transpose(-2, -1)) * 0.35, -1)
        y = holon.matmul(weights, v).transpose(1, 2).reshape(b, t, c)
        x = x + self.drop(self.out(y))
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.n2(x)))))


class Front(nn.Module):
    def __init__(self, norm, dropout):
        super().__init__()
        self.words, self.block = nn.Embedding(WORDS, WIDTH), Block(norm, dropout)

    def forward(self, x):
        return self.block(self.words(x))


class Back(nn.Module):
    def __init__(self, norm, dropout):
        super().__init__()
        self.block, self.norm, self.head = Block(norm, dropout), norm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x):
        return self.head(self.norm(self.block(x)))


class Gpt(nn.Module):
    def __init__(self, norm=nn.LayerNorm, dropout=0.0):
        super().__init__()
        self.first, self.second = Front(norm, dropout), Back(norm, dropout)

    def forward(self, x):
        return self.second(self.first(x))


class Train(nn.Graph):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.add_optimizer(optim.SGD(model.parameters(), lr=0.1))

    def build(self, x, y):
        loss = loss_of(self.model(x), y)
        loss.backward()
        return loss


def loss_of(scores, y):
    return nn.functional.cross_entropy(scores.reshape(-1, WORDS), y.reshape(-1))


def texts():
    rng = np.random.default_rng(0)
    return [
        (holon.tensor(rng.integers(0, WORDS, (ROWS, LENGTH))), holon.tensor(rng.integers(0, WORDS, (ROWS, LENGTH))))
        for _ in range(STEPS)
    ]


def made(**options):
    holon.manual_seed(0)
    return Gpt(**options)


def eager(amp=False, **options):
    """Losses and parameters of training on one rank."""
    model, losses = made(**options), []
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    holon.manual_seed(5)
    for x, y in texts():
        optimizer.zero_grad()
        with holon.autocast(enabled=amp):
            loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: p.numpy() for name, p in model.state_dict().items()}


def check(model, found, want, tolerance=1e-5):
    np.testing.assert_allclose(found, want[0], rtol=tolerance)
    for name, p in model.state_dict().items():
        np.testing.assert_allclose(
            p.full_value().numpy(), want[1][name], rtol=tolerance * 10, atol=tolerance * 10, err_msg=name
        )


def counts(graph):
    """How many sums come with their norm, and norms' gradients with what is added to them."""
    ops = [line.split()[1].split("(")[0] for line in graph.plan().splitlines()]
    return tuple(
        sum(op == name for op in ops)
        for name in ("add_layer_norm", "add_rms_norm", "layer_norm_backward_add", "rms_norm_backward_add")
    )


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_a_gpt_holds_them_and_equals_eager(norm):
    # Without dropout the sum is the product's own last part, which saves more.
    for dropout, sums in ((0.0, 0), (0.2, 4)):
        want, model = eager(norm=norm, dropout=dropout), made(norm=norm, dropout=dropout)
        graph = Train(model)
        graph.config.verify()
        holon.manual_seed(5)
        check(model, [graph(x, y).item() for x, y in texts()], want)
        assert counts(graph) == ((sums, 0, 4, 0) if norm is nn.LayerNorm else (0, sums, 0, 4))


def test_it_can_be_switched_off():
    want, model = eager(dropout=0.2), made(dropout=0.2)
    graph = Train(model)
    graph.config.allow_fuse_norm(False)
    holon.manual_seed(5)
    check(model, [graph(x, y).item() for x, y in texts()], want)
    assert counts(graph) == (0, 0, 0, 0) and "without pass fuse_norm" in repr(graph)
    graph.config.allow_fuse_norm()
    graph(*texts()[0])
    assert counts(graph) == (4, 0, 4, 0) and "fuse_norm" in repr(graph)


def test_with_autocast_the_casts_are_theirs():
    want, model = eager(amp=True), made()
    graph = Train(model)
    graph.config.enable_amp(True)
    check(model, [graph(x, y).item() for x, y in texts()], want, 1e-3)
    assert counts(graph) == (4, 0, 4, 0)
    narrow = [line for line in graph.plan().splitlines() if " add_layer_norm(" in line]
    assert all(f"-> float32 {[ROWS, LENGTH, WIDTH]} bfloat16" in line for line in narrow), narrow


def test_with_recomputation_and_accumulation():
    want, model = eager(), made()
    graph = Train(model)
    graph.config.set_gradient_accumulation_steps(2)
    model.second.to(nn.graph.GraphModule).activation_checkpointing = True
    check(model, [graph(x, y).numpy().mean() for x, y in texts()], want)
    assert counts(graph)[2] == 2 * 4


@pytest.mark.parametrize("data", [S0, S1], ids=["rows", "sequence"])
def test_on_two_ranks(data):
    want = eager()

    def program(rank):
        p = holon.placement("cpu", [0, 1])
        model = made()
        model.to_global(p, B)
        graph = Train(model)
        graph.config.verify()
        found = [
            graph(x.to_global(p, B).to_global(p, data), y.to_global(p, B).to_global(p, data)).item() for x, y in texts()
        ]
        check(model, found, want)
        # Where the layouts that cost least change between a norm's gradient and the sum, the two stay apart.
        assert counts(graph)[2] == 4 if data == S0 else counts(graph)[2] >= 1

    holon.run_ranks(2, program)


def test_tensor_parallel():
    want = eager()

    def program(rank):
        p = holon.placement("cpu", [0, 1])
        model = made()
        model.to_global(p, B)
        columns, rows = ("*.q.*", "*.k.*", "*.v.*", "*.up.*"), ("*.out.weight", "*.down.weight")
        model.to_global(p, dict.fromkeys(columns, S0) | dict.fromkeys(rows, S1) | {"*": B})
        graph = Train(model)
        graph.config.verify()
        found = [graph(x.to_global(p, B), y.to_global(p, B)).item() for x, y in texts()]
        check(model, found, want)
        assert counts(graph) == (4, 0, 4, 0), "what products give is partial: it is summed before the residual is added"

    holon.run_ranks(2, program)


def test_in_a_pipeline():
    want = eager()

    def program(rank):
        stages = [holon.placement("cpu", [r]) for r in (0, 1)]
        model = made()
        for i, part in enumerate((model.first, model.second)):
            part.to_global(stages[i], B)
        graph = Train(model)
        for i, part in enumerate((model.first, model.second)):
            part.to(nn.graph.GraphModule).set_stage(i, stages[i])
        graph.config.set_gradient_accumulation_steps(2)
        graph.config.verify()
        found = []
        for x, y in texts():
            x, y = x.to_global(holon.placement("cpu", [0, 1]), B), y.to_global(holon.placement("cpu", [0, 1]), B)
            found.append(graph(x.to_global(stages[0], B), y.to_global(stages[1], B)).full_value().numpy().mean())
        check(model, found, want)
        assert counts(graph)[2] == 2 * 2

    holon.run_ranks(2, program)
