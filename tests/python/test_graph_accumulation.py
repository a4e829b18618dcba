"""Gradients of micro-batches are added by the products that make them, where their sum is."""

import numpy as np
import pytest

import holon
from holon import nn, optim

B, S0 = holon.sbp.broadcast, holon.sbp.split(0)
ROWS, MICRO, STEPS = 16, 4, 5


class Model(nn.Module):
    """Products with and without bias, [in, out] and [out, in], and a table that is looked up."""

    def __init__(self):
        super().__init__()
        self.words, self.up, self.down = nn.Embedding(30, 8), nn.Linear(8, 12), nn.Linear(12, 8, bias=False)
        self.w = nn.Parameter(holon.randn(8, 5))

    def forward(self, x):
        return holon.matmul(holon.tanh(self.down(holon.relu(self.up(self.words(x))))), self.w)


class Train(nn.Graph):
    def __init__(self, model, micro=MICRO):
        super().__init__()
        self.model = model
        self.add_optimizer(optim.SGD(model.parameters(), lr=0.1))
        self.config.set_gradient_accumulation_steps(micro)
        self.config.verify()

    def build(self, x, y):
        loss = nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        return loss


def data():
    rng = np.random.default_rng(0)
    return [
        (holon.tensor(rng.integers(0, 30, ROWS)), holon.tensor(rng.normal(size=(ROWS, 5)).astype(np.float32)))
        for _ in range(STEPS)
    ]


def made():
    holon.manual_seed(0)
    return Model()


def eager():
    model, losses = made(), []
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for x, y in data():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: p.numpy() for name, p in model.state_dict().items()}


def check(model, found, want):
    np.testing.assert_allclose(found, want[0], rtol=1e-5)
    for name, p in model.state_dict().items():
        np.testing.assert_allclose(p.full_value().numpy(), want[1][name], rtol=1e-5, atol=1e-6, err_msg=name)


def ops(graph, text):
    return [line.split()[1].split("(")[0] for line in graph.plan().splitlines() if text in line]


def test_no_sum_is_taken_by_itself():
    want, model = eager(), made()
    graph = Train(model)
    check(model, [graph(x, y).numpy().mean() for x, y in data()], want)
    assert sorted(ops(graph, "added to")) == sorted(
        ["embedding_backward", "linear_gradients", "linear_weight_grad", "matmul"] * (MICRO - 1)
    )
    assert "add" not in ops(graph, "")


def test_with_micro_batches_of_unequal_rows(monkeypatch):
    monkeypatch.setitem(globals(), "ROWS", 14)
    want, model = eager(), made()
    graph = Train(model)
    graph.config.set_gradient_accumulation_steps(MICRO, uneven=True)
    for x, y in data():
        graph(x, y)
    for name, p in model.state_dict().items():
        np.testing.assert_allclose(p.numpy(), want[1][name], rtol=1e-5, atol=1e-6, err_msg=name)
    assert len(ops(graph, "added to")) == 4 * (MICRO - 1) and "add" not in ops(graph, "")


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_on_two_ranks(zero):
    want = eager()

    def program(rank):
        p = holon.placement("cpu", [0, 1])
        model = made()
        model.to_global(p, B)
        graph = Train(model, 2)
        graph.config.enable_zero(zero > 0, stage=zero or 1)
        found = [
            graph(x.to_global(p, B).to_global(p, S0), y.to_global(p, B).to_global(p, S0)).full_value().numpy().mean()
            for x, y in data()
        ]
        check(model, found, want)
        if zero < 2:  # where the sum is one of shards, gradients are not added up whole
            assert len(ops(graph, "added to")) == 4

    holon.run_ranks(2, program)


def test_what_something_else_reads_is_not_added_to():
    """One weight in two products: their gradients are added to each other first."""
    holon.manual_seed(0)
    layer = nn.Linear(6, 6)
    model = nn.Sequential(layer, nn.Tanh(), layer)
    x, y = holon.randn(8, 6), holon.randn(8, 6)
    copy = nn.Sequential(layer, nn.Tanh(), layer)
    loss = nn.functional.mse_loss(copy(x), y)
    loss.backward()
    want = [(p - 0.1 * p.grad).detach().numpy() for p in layer.parameters()]
    layer.zero_grad()
    graph = Train(model)
    np.testing.assert_allclose(graph(x, y).numpy().mean(), loss.item(), rtol=1e-5)
    for p, w in zip(layer.parameters(), want):
        np.testing.assert_allclose(p.detach().numpy(), w, rtol=1e-5, atol=1e-6)
