"""nn.Graph on several ranks, which are threads here: layouts, stages, and what ranks and placements change."""

import numpy as np
import pytest

import holon
from holon import nn, optim

B, S0, S1 = holon.sbp.broadcast, holon.sbp.split(0), holon.sbp.split(1)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(12, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.second(holon.relu(self.first(x)))


class Train(nn.Graph):
    def __init__(self, model, optimizer):
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)

    def build(self, x, y):
        loss = nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        return loss


def numbers(n=6, rows=8, seed=0):
    rng = np.random.default_rng(seed)
    return [
        (rng.normal(size=(rows, 12)).astype(np.float32), rng.normal(size=(rows, 4)).astype(np.float32))
        for _ in range(n)
    ]


def reference(make_optimizer):
    """Losses and parameters of eager steps on one rank."""
    holon.manual_seed(0)
    model = Mlp()
    optimizer, losses = make_optimizer(model.parameters()), []
    for x, y in numbers():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(holon.tensor(x)), holon.tensor(y))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {k: v.numpy() for k, v in model.state_dict().items()}


def adamw(params):
    return optim.AdamW(params, lr=1e-2)


def assert_like(model, want):
    for name, p in model.state_dict().items():
        np.testing.assert_allclose(p.full_value().numpy(), want[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "layout, data",
    [(B, S0), ({"first.weight": S0, "first.bias": S0, "second.weight": S1, "second.bias": B}, B)],
    ids=["data", "tensor"],
)
def test_two_ranks_equal_one(layout, data, zero):
    losses, want = reference(adamw)

    def program(rank):
        p = holon.placement("cpu", [0, 1])
        holon.manual_seed(0)
        model = Mlp()
        model.to_global(p, B)
        model.to_global(p, layout)
        optimizer = adamw(model.parameters())
        graph = Train(model, optimizer)
        graph.config.enable_zero(zero > 0, stage=zero or 1)
        found = [
            graph(holon.tensor(x, placement=p, sbp=data), holon.tensor(y, placement=p, sbp=data)).item()
            for x, y in numbers()
        ]
        np.testing.assert_allclose(found, losses, rtol=1e-4)
        assert_like(model, want)
        # The state comes back in the layout of the parameters, whatever ZeRO made of it, and eager steps go on with it.
        state = optimizer.state[model.first.weight]
        assert state["step"] == 6 and state["exp_avg"].sbp == model.first.weight.sbp
        x, y = (holon.tensor(v, placement=p, sbp=data) for v in numbers(1)[0])
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        graph(x, y)
        assert optimizer.state_dict()["state"][0]["step"] == 8

    holon.run_ranks(2, program)


class Staged(nn.Graph):
    def __init__(self, model, optimizer, placements, micro_batches=1):
        super().__init__()
        self.model = model
        for i, (part, placement) in enumerate(zip((model.first, model.second), placements)):
            part.to(nn.graph.GraphModule).set_stage(i, placement)
        self.add_optimizer(optimizer)
        self.config.set_gradient_accumulation_steps(micro_batches)

    def build(self, x, y):
        loss = nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        return loss


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_stages_equal_one_rank(micro_batches):
    losses, want = reference(adamw)

    def program(rank):
        placements = [holon.placement("cpu", [0]), holon.placement("cpu", [1])]
        holon.manual_seed(0)
        model = Mlp()
        model.to_global(holon.placement("cpu", [0, 1]), B)
        model.first.to_global(placements[0], B)
        model.second.to_global(placements[1], B)
        graph = Staged(model, adamw(model.parameters()), placements, micro_batches)
        assert model.first.to(nn.graph.GraphModule).stage_id is None  # it belongs to the graph
        found = []
        for x, y in numbers():
            # The second stage's input is brought to its ranks; so is nothing else: y is there already.
            loss = graph(
                holon.tensor(x, placement=placements[0], sbp=B), holon.tensor(y, placement=placements[1], sbp=B)
            )
            found.append(float(loss.full_value().numpy().mean()))
        np.testing.assert_allclose(found, losses, rtol=1e-4)
        assert_like(model, want)
        text = repr(graph)
        assert "stage 0 on" in text and "stage 1 on" in text
        assert "stage 1" in graph.captured()

    holon.run_ranks(2, program)


def test_stages_before_assignment_and_from_outside():
    def program(rank):
        placements = [holon.placement("cpu", [0]), holon.placement("cpu", [1])]
        model = nn.Sequential(
            nn.Linear(3, 3, placement=placements[0], sbp=B), nn.Linear(3, 3, placement=placements[1], sbp=B)
        )
        first = model[0].to(nn.graph.GraphModule)
        first.set_stage(0, placements[0])
        assert (
            first.to(nn.Module) is model[0]
            and model[0].to(nn.graph.GraphModule) is first
            and model.to(nn.Module) is model
        )

        class G(nn.Graph):
            def __init__(self):
                super().__init__()
                self.model = model

            def build(self, x):
                return self.model(x)

        graph, x = G(), holon.ones(2, 3, placement=placements[0], sbp=B)
        assert first.name == "model.0" and first.stage_id == 0 and first.stage_placement == placements[0]
        with pytest.raises(RuntimeError, match="same placement.*in model.1, while G was captured"):
            graph(x)
        model[1].to(nn.graph.GraphModule).set_stage(1, placements[1])
        y = graph(x)
        assert y.placement == placements[1]
        want = x.to_global(placements[0], B).full_value() @ model[0].weight.full_value().T + model[0].bias.full_value()
        want = want @ model[1].weight.full_value().T + model[1].bias.full_value()
        np.testing.assert_allclose(y.full_value().numpy(), want.detach().numpy(), rtol=1e-5)

    holon.run_ranks(2, program)


def test_layouts_belong_to_the_signature():
    def program(rank):
        p, q = holon.placement("cpu", [0, 1]), holon.placement("cpu", [1])

        class G(nn.Graph):
            def build(self, x):
                return x * 2

        graph = G()
        for placement, sbp, n in ((p, S0, 1), (p, B, 2), (q, B, 3), (p, S0, 3)):
            x = holon.ones(4, 2, placement=placement, sbp=sbp)
            assert graph(x).sbp == (sbp,) and graph(x).full_value().sum().item() == 16
            assert graph._core.n_signatures == n
        assert graph(holon.ones(2)).is_local

    holon.run_ranks(2, program)


def test_a_local_input_where_parameters_are_global():
    def program(rank):
        p = holon.placement("cpu", [0, 1])
        model = Mlp()
        model.to_global(p, B)
        graph = Train(model, optim.SGD(model.parameters(), lr=0.1))
        x, y = (holon.tensor(v) for v in numbers(1)[0])
        with pytest.raises(RuntimeError, match="(?s)local.*in model.first, while Train was captured"):
            graph(x, y)

    holon.run_ranks(2, program)


def test_parameters_that_get_another_layout_are_captured_again():
    def program(rank):
        p = holon.placement("cpu", [0, 1])
        model = nn.Linear(4, 4, placement=p, sbp=B)

        class G(nn.Graph):
            def __init__(self):
                super().__init__()
                self.model = model

            def build(self, x):
                return self.model(x)

        graph, x = G(), holon.ones(2, 4, placement=p, sbp=B)
        before = graph(x)
        model.to_global(p, {"weight": S0, "bias": S0})
        after = graph(x)
        assert before.sbp == (B,) and after.sbp == (S1,)
        np.testing.assert_allclose(before.full_value().numpy(), after.full_value().numpy(), rtol=1e-6)

    holon.run_ranks(2, program)


class Returned(Staged):
    """Brings the loss to the first stage's ranks, and goes on with it there, to return it."""

    def build(self, x, y):
        loss = super().build(x, y)
        return loss.to_global(placement=holon.placement("cpu", [0]), sbp=B) * 2


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_results_may_go_back_to_the_first_stages_ranks(micro_batches):
    def program(rank):
        placements = [holon.placement("cpu", [0]), holon.placement("cpu", [1])]
        found = []
        for kind in (Staged, Returned):
            holon.manual_seed(0)
            model = Mlp().to_global(holon.placement.all("cpu"), B)
            model.first.to_global(placements[0], B)
            model.second.to_global(placements[1], B)
            graph = kind(model, adamw(model.parameters()), placements, micro_batches)
            found.append([])
            for x, y in numbers(3):
                loss = graph(
                    holon.tensor(x, placement=placements[0], sbp=B), holon.tensor(y, placement=placements[1], sbp=B)
                )
                assert loss.placement == placements[kind is Staged]
                found[-1].append(loss.full_value().numpy())
        np.testing.assert_allclose(np.array(found[1]), 2 * np.array(found[0]), rtol=1e-6)

    holon.run_ranks(2, program)
