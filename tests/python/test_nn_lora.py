"""Adapters of low rank next to layers of Python modules."""

import copy

import numpy as np
import pytest
from holon.nn.utils import Lora

import holon as flow
from holon import nn

D = flow.float64


class Net(nn.Module):
    def __init__(self, **where):
        super().__init__()
        first, second = where.pop("split", (None, None))
        self.up = nn.Linear(8, 12, dtype=D, **where, **({"sbp": first} if first else {}))
        self.down = nn.Linear(12, 6, dtype=D, **where, **({"sbp": second} if second else {}))

    def forward(self, x):
        return self.down(flow.tanh(self.up(x)))


def drawn(net, *targets, **options):
    lora = Lora(net, *targets, **options)
    with flow.no_grad():
        for name, p in net.named_parameters():
            if name.endswith("lora_B.weight"):
                p.copy_(
                    flow.randn(p.shape, dtype=D, **({"placement": p.placement, "sbp": p.sbp} if p.is_global else {}))
                )
    return lora


@pytest.mark.parametrize("rslora", [False, True])
def test_it_is_that_of_the_merged_weight(rslora):
    flow.manual_seed(1)
    net, x = Net(), flow.randn(5, 8, dtype=D)
    before, weight = net(x).numpy(), net.up.weight.numpy().copy()
    lora = Lora(net, r=3, lora_alpha=7, use_rslora=rslora)
    np.testing.assert_array_equal(net(x).detach().numpy(), before)
    with flow.no_grad():
        net.up.lora_B.weight.copy_(flow.randn(12, 3, dtype=D))
    wanted = net(x).detach().numpy()
    assert np.abs(wanted - before).max() > 0.1
    lora.merge()
    np.testing.assert_allclose(net(x).detach().numpy(), wanted, atol=1e-12)
    added = net.up.lora_B.weight.detach().numpy() @ net.up.lora_A.weight.detach().numpy()
    np.testing.assert_allclose(net.up.weight.numpy(), weight + added * 7 / (3**0.5 if rslora else 3), atol=1e-12)
    lora.unmerge()
    np.testing.assert_allclose(net.up.weight.numpy(), weight, atol=1e-12)
    np.testing.assert_allclose(net(x).detach().numpy(), wanted, atol=1e-12)
    lora.merge()
    lora.remove()
    np.testing.assert_allclose(net(x).detach().numpy(), wanted, atol=1e-12)
    assert list(net.state_dict()) == ["up.weight", "up.bias", "down.weight", "down.bias"]
    assert all(p.requires_grad for p in net.parameters())


def test_only_adapters_are_learned_and_gradients_are_those_of_finite_differences():
    flow.manual_seed(2)
    net, x = Net(), flow.randn(5, 8, dtype=D)
    lora = drawn(net, r=2, lora_alpha=3)
    assert [p.shape for p in lora.parameters()] == [(2, 8), (12, 2), (2, 12), (6, 2)]
    assert {id(p) for p in net.parameters() if p.requires_grad} == {id(p) for p in lora.parameters()}
    flow.square(net(x)).sum().backward()
    for p in lora.parameters():
        values = p.detach().numpy()
        for i in np.ndindex(*p.shape):
            kept, losses = values[i], []
            for step in (1e-6, -1e-6):
                with flow.no_grad():
                    p[i] = kept + step
                    losses.append(flow.square(net(x)).sum().item())
                    p[i] = kept
            np.testing.assert_allclose(p.grad.numpy()[i], (losses[0] - losses[1]) / 2e-6, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("split", [(flow.sbp.split(0), flow.sbp.split(1)), (flow.sbp.broadcast, flow.sbp.broadcast)])
def test_on_two_ranks(split, graph):
    def run(rank, ranks, split, graph):
        flow.manual_seed(3)
        placement = flow.placement("cpu", list(range(ranks)))
        net = Net(placement=placement, split=split)
        lora = drawn(net, r=2, lora_dropout=0.25)
        rows = flow.sbp.broadcast if split[0] == flow.sbp.split(0) else flow.sbp.split(0)
        x = flow.randn(6, 8, dtype=D, placement=placement, sbp=rows)
        optimizer = flow.optim.SGD(lora.parameters(), lr=1e-4)

        class Step(nn.Graph):
            def __init__(self):
                super().__init__()
                self.net = net
                self.add_optimizer(optimizer)

            def build(self, x):
                loss = flow.square(self.net(x)).mean()
                loss.backward()
                return loss

        def eager(x):
            optimizer.zero_grad()
            loss = flow.square(net(x)).mean()
            loss.backward()
            optimizer.step()
            return loss

        step = Step() if graph else eager
        losses = [step(x).item() for _ in range(4)]
        return losses, [str(p.sbp[0]) for p in lora.parameters()]

    b = (flow.sbp.broadcast, flow.sbp.broadcast)
    ((wanted, _),) = flow.run_ranks(1, lambda rank: run(rank, 1, b, False))
    assert len(set(wanted)) == 4
    for losses, sbps in flow.run_ranks(2, lambda rank: run(rank, 2, split, graph)):
        np.testing.assert_allclose(losses, wanted, rtol=1e-9)
        s0, s1, whole = (str(s) for s in (flow.sbp.split(0), flow.sbp.split(1), flow.sbp.broadcast))
        assert sbps == ([whole, s0, s1, whole] if split != b else [whole] * 4)


def test_targets_and_what_is_wrong():
    def made():
        return nn.ModuleDict({"a": Net(), "attention": nn.MultiheadAttention(8, 2), "c": nn.Linear(3, 3)})

    for targets, count in [("all-linear", 3), (["up"], 1), (["a.up", "c"], 2), (r"a\..*", 2), ("down", 1)]:
        assert len(Lora(made(), targets).parameters()) == 2 * count
    for options, message in [
        ({"target_modules": ["upper"]}, "'upper' is not the end of .* a.up, a.down, c"),
        ({"target_modules": []}, "is not the end of"),
        ({"target_modules": "out_proj"}, "is not the end of"),
        ({"r": 0}, "r is 0"),
        ({"lora_alpha": float("inf")}, "lora_alpha is inf"),
        ({"lora_dropout": -1}, "probability"),
    ]:
        net = made()
        with pytest.raises(ValueError, match=message):
            Lora(net, **options)
        assert all(p.requires_grad for p in net.parameters()) and len(list(net.parameters())) == 10
    net = Net()
    lora = Lora(net, ["up"])
    with pytest.raises(ValueError, match="'up' has an adapter already"):
        Lora(net)
    with pytest.raises(RuntimeError, match="not merged"):
        lora.unmerge()
    lora.merge()
    with pytest.raises(RuntimeError, match="merged already"):
        lora.merge()
    flow.manual_seed(1)
    with pytest.raises(ValueError, match=r"models of holon.models have add_lora\(\)"):
        Lora(flow.models.from_config({"model_type": "gpt2", "vocab_size": 9, "n_embd": 8, "n_layer": 1, "n_head": 2}))


def test_copies_and_halves():
    flow.manual_seed(4)
    net = nn.Sequential(nn.Linear(4, 4).to(flow.bfloat16))
    lora = Lora(net, r=2)
    assert lora.parameters()[0].dtype == flow.float32
    with flow.no_grad():
        lora.parameters()[1].fill_(1)
    x = flow.ones(1, 4, dtype=flow.bfloat16)
    y = net(x)
    assert y.dtype == flow.bfloat16
    other = copy.deepcopy(net)
    np.testing.assert_array_equal(other(x).float().detach().numpy(), y.float().detach().numpy())
    with flow.no_grad():
        other[0].lora_B.weight.fill_(5)
    assert (other(x).float().detach().numpy() != y.float().detach().numpy()).any()
    np.testing.assert_array_equal(net(x).float().detach().numpy(), y.float().detach().numpy())
