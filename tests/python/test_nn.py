"""Modules, layers, losses and initial values:
bookkeeping, values against NumPy, and global layers against local ones."""

import copy
import math

import numpy as np
import pytest

import holon
from holon import nn

F = nn.functional
B, S = holon.sbp.broadcast, holon.sbp.split


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.scale = nn.Parameter(holon.ones(4))
        self.register_buffer("seen", holon.zeros(1))
        self.register_buffer("scratch", holon.zeros(1), persistent=False)

    def forward(self, x):
        return self.first(x) * self.scale


def array(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# Bookkeeping


def test_names_and_walks():
    model = nn.Sequential(Block(), nn.ReLU(), Block())
    names = ["first.weight", "first.bias", "scale"]
    assert [n for n, _ in Block().named_parameters()] == ["scale", "first.weight", "first.bias"]
    assert sorted(n for n, _ in model.named_parameters()) == sorted(f"{i}.{n}" for i in (0, 2) for n in names)
    assert [n for n, _ in model.named_buffers()] == ["0.seen", "0.scratch", "2.seen", "2.scratch"]
    assert [n for n, _ in model.named_modules()] == ["", "0", "0.first", "1", "2", "2.first"]
    assert len(list(model.children())) == 3
    assert model.get_submodule("2.first") is model[2].first
    assert model.get_parameter("0.first.weight") is model[0].first.weight
    with pytest.raises(AttributeError, match="has no submodule 'nowhere'"):
        model.get_submodule("0.nowhere")


def test_shared_parameters_are_listed_once():
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    model[1].weight = model[0].weight
    assert len(list(model.parameters())) == 3


def test_attributes():
    block = Block()
    block.first = nn.Linear(3, 5)
    assert block.get_parameter("first.weight").shape == (5, 3)
    with pytest.raises(TypeError, match="cannot assign Tensor as 'scale'"):
        block.scale = holon.ones(4)
    block.scale = None
    assert "scale" not in dict(block.named_parameters())
    del block.first
    assert not hasattr(block, "first")
    with pytest.raises(AttributeError, match="Block has no attribute 'nothing'"):
        block.nothing  # noqa: B018
    with pytest.raises(KeyError, match="has an attribute 'forward' already"):
        block.register_buffer("forward", holon.zeros(1))


def test_forgotten_super_init_is_named():
    class Bare(nn.Module):
        def __init__(self):
            self.layer = nn.Linear(1, 1)

    with pytest.raises(AttributeError, match=r"super\(\).__init__\(\) first"):
        Bare()


def test_missing_forward_is_named():
    with pytest.raises(NotImplementedError, match="Module has no forward"):
        nn.Module()(1)


def test_train_eval_apply_and_requires_grad():
    model = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Linear(2, 2)))
    model.eval()
    assert not any(m.training for m in model.modules())
    assert all(m.training for m in model.train().modules())
    seen = []
    model.apply(lambda m: seen.append(type(m).__name__))
    assert seen == ["Dropout", "Linear", "Sequential", "Sequential"]
    assert not any(p.requires_grad for p in model.requires_grad_(False).parameters())


def test_zero_grad():
    layer = nn.Linear(2, 1)
    layer(holon.ones(3, 2)).sum().backward()
    layer.zero_grad(set_to_none=False)
    assert layer.weight.grad.tolist() == [[0, 0]]
    layer.zero_grad()
    assert layer.weight.grad is None


def test_hooks():
    layer, calls = nn.Identity(), []
    before = layer.register_forward_pre_hook(lambda m, args: (args[0] + 1,))
    after = layer.register_forward_hook(lambda m, args, result: calls.append(result.item()))
    changed = layer.register_forward_hook(lambda m, args, result: result * 10)
    assert layer(holon.tensor(2.0)).item() == 30 and calls == [3]
    for handle in (before, after, changed):
        handle.remove()
    assert layer(holon.tensor(2.0)).item() == 2 and calls == [3]


def test_state_dict_round_trip():
    a, b = nn.Sequential(Block(), Block()), nn.Sequential(Block(), Block())
    a[0].seen.fill_(7)
    state = a.state_dict()
    assert sorted(state) == sorted(f"{i}.{n}" for i in (0, 1) for n in ("scale", "seen", "first.weight", "first.bias"))
    assert not any(t.requires_grad for t in state.values())
    assert str(b.load_state_dict(state)) == "<All keys matched successfully>"
    for name, value in b.state_dict().items():
        assert value.tolist() == state[name].tolist()


def test_load_state_dict_names_what_does_not_fit():
    model, state = nn.Sequential(nn.Linear(2, 3)), nn.Sequential(nn.Linear(2, 3)).state_dict()
    state["0.extra"] = state.pop("0.bias")
    with pytest.raises(RuntimeError, match="missing: 0.bias; unexpected: 0.extra"):
        model.load_state_dict(state)
    result = model.load_state_dict(state, strict=False)
    assert result.missing_keys == ["0.bias"] and result.unexpected_keys == ["0.extra"]
    before = model[0].weight.tolist()
    with pytest.raises(RuntimeError, match=r"0.weight is \[1\], the module's is \[3, 2\]"):
        model.load_state_dict({"0.weight": holon.ones(1), "0.bias": holon.ones(3)})
    assert model[0].weight.tolist() == before


def test_load_state_dict_is_brief_about_many_names():
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(200)))
    state = model.state_dict()
    with pytest.raises(
        RuntimeError, match=r"missing: 0.weight, 0.bias, .* and 395 more; unexpected: .* and 395 more"
    ) as e:
        model.load_state_dict({f"model.{name}": t for name, t in state.items()})
    assert "begin with 'model.'" in str(e.value) and len(str(e.value)) < 400
    with pytest.raises(RuntimeError, match="and 395 more") as e:
        model.load_state_dict({name: holon.ones(1) for name in state})
    assert len(str(e.value)) < 600


def test_to_converts_floating_values_and_keeps_the_objects():
    block = Block()
    block.register_buffer("count", holon.zeros(1, dtype=holon.int64))
    weight = block.first.weight
    block.double()
    assert block.first.weight is weight and weight.dtype == holon.float64 and weight.requires_grad and weight.is_leaf
    assert block.count.dtype == holon.int64
    assert block.to("cpu").to(holon.float32) is block and weight.dtype == holon.float32


def test_deepcopy():
    a = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    b = copy.deepcopy(a)
    assert type(b[0].weight) is nn.Parameter and b[0].weight.tolist() == a[0].weight.tolist()
    with holon.no_grad():
        b[0].weight.fill_(0)
    assert a[0].weight.tolist() != b[0].weight.tolist()


def test_containers():
    s = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 3))
    assert len(s) == 3 and s[-1].out_features == 3 and [type(m) for m in s[:2]] == [nn.Linear, nn.ReLU]
    s.append(nn.Tanh())
    del s[1]
    assert [type(m).__name__ for m in s] == ["Linear", "Linear", "Tanh"]
    s.insert(0, nn.Identity())
    assert [n for n, _ in s.named_children()] == ["0", "1", "2", "3"] and isinstance(s[0], nn.Identity)
    with pytest.raises(IndexError, match="index 9"):
        s[9]
    named = nn.Sequential({"up": nn.Linear(1, 2), "act": nn.ReLU()})
    assert [n for n, _ in named.named_children()] == ["up", "act"]
    d = nn.ModuleDict({"a": nn.ReLU()})
    d["b"] = nn.Linear(1, 1)
    assert list(d) == ["a", "b"] and "a" in d and [n for n, _ in d.named_parameters()] == ["b.weight", "b.bias"]
    with pytest.raises(KeyError, match="has no 'c'"):
        d["c"]
    p = nn.ParameterList([holon.ones(2), nn.Parameter(holon.ones(3))])
    assert [tuple(x.shape) for x in p.parameters()] == [(2,), (3,)]


def test_repr():
    model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.ModuleDict({"act": nn.GELU()}))
    assert (
        repr(model)
        == """Sequential(
  (0): Linear(in_features=2, out_features=3, bias=False)
  (1): ModuleDict(
    (act): GELU(approximate='none')
  )
)"""
    )
    assert repr(nn.Conv2d(1, 2, 3, padding="same")) == "Conv2d(1, 2, kernel_size=(3, 3), stride=(1, 1), padding='same')"
    assert repr(nn.Parameter(holon.ones(1))).startswith("Parameter containing:\ntensor([1.]")


def test_parameter():
    x = holon.ones(2, requires_grad=True) * 2
    p = nn.Parameter(x)
    assert isinstance(p, holon.Tensor) and p.is_leaf and p.requires_grad
    assert not nn.Parameter(x, requires_grad=False).requires_grad
    with pytest.raises(TypeError, match="made from a tensor, not from list"):
        nn.Parameter([1.0])


# Values


def test_linear():
    layer, x = nn.Linear(3, 4), array(5, 2, 3)
    expected = x @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
    np.testing.assert_allclose(layer(holon.tensor(x)).detach().numpy(), expected, rtol=1e-5, atol=1e-6)
    bound = 1 / math.sqrt(3)
    assert np.abs(layer.weight.detach().numpy()).max() <= bound and np.abs(layer.bias.detach().numpy()).max() <= bound


@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm(affine):
    layer, x = nn.LayerNorm((3, 4), elementwise_affine=affine), array(2, 3, 4)
    mean, var = x.mean((1, 2), keepdims=True), x.var((1, 2), keepdims=True)
    np.testing.assert_allclose(
        layer(holon.tensor(x)).detach().numpy(), (x - mean) / np.sqrt(var + 1e-5), rtol=1e-4, atol=1e-5
    )


def test_embedding():
    layer, at = nn.Embedding(7, 3), np.array([[0, 6], [3, 3]])
    assert layer(holon.tensor(at)).tolist() == layer.weight.detach().numpy()[at].tolist()


def plain_conv2d(x, w, stride, padding, dilation):
    (top, bottom), (left, right) = padding
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    kh, kw = (d * (k - 1) + 1 for k, d in zip(w.shape[2:], dilation))
    rows, columns = (x.shape[2] - kh) // stride + 1, (x.shape[3] - kw) // stride + 1
    out = np.zeros((len(x), len(w), rows, columns))
    for i in range(rows):
        for j in range(columns):
            window = x[:, :, i * stride : i * stride + kh : dilation[0], j * stride : j * stride + kw : dilation[1]]
            out[:, :, i, j] = np.einsum("nchw,ochw->no", window, w)
    return out


@pytest.mark.parametrize(
    "kernel, stride, padding, dilation, sides",
    [
        (3, 1, 0, 1, ((0, 0), (0, 0))),
        (3, 2, 1, 1, ((1, 1), (1, 1))),
        (3, 1, "same", 1, ((1, 1), (1, 1))),
        ((2, 4), 1, "same", 1, ((0, 1), (1, 2))),
        (3, 1, "same", (2, 1), ((2, 2), (1, 1))),
        (2, 1, "valid", 1, ((0, 0), (0, 0))),
    ],
)
def test_conv2d(kernel, stride, padding, dilation, sides):
    layer, x = nn.Conv2d(2, 3, kernel, stride, padding, dilation), array(2, 2, 7, 6)
    dilation = dilation if isinstance(dilation, tuple) else (dilation, dilation)
    expected = plain_conv2d(x, layer.weight.detach().numpy(), stride, sides, dilation)
    expected = expected + layer.bias.detach().numpy()[:, None, None]
    np.testing.assert_allclose(layer(holon.tensor(x)).detach().numpy(), expected, rtol=1e-4, atol=1e-5)


def test_conv2d_mistakes():
    with pytest.raises(ValueError, match="groups is 2"):
        nn.Conv2d(3, 4, 3, groups=2)
    with pytest.raises(ValueError, match="'same' is for stride 1"):
        nn.Conv2d(1, 1, 3, 2, "same")(holon.ones(1, 1, 5, 5))


def test_pools():
    x = array(2, 3, 4, 6)
    windows = x.reshape(2, 3, 2, 2, 3, 2)
    np.testing.assert_allclose(nn.MaxPool2d(2)(holon.tensor(x)).numpy(), windows.max((3, 5)), rtol=1e-6)
    np.testing.assert_allclose(nn.AvgPool2d(2)(holon.tensor(x)).numpy(), windows.mean((3, 5)), rtol=1e-5, atol=1e-6)


def test_activations_and_shapes():
    x = array(3, 4)
    t = holon.tensor(x)
    e = np.exp(x - x.max(-1, keepdims=True))
    erf = np.vectorize(math.erf)
    for layer, expected in [
        (nn.ReLU(), np.maximum(x, 0)),
        (nn.Tanh(), np.tanh(x)),
        (nn.Sigmoid(), 1 / (1 + np.exp(-x))),
        (nn.SiLU(), x / (1 + np.exp(-x))),
        (nn.GELU(), x * (1 + erf(x / math.sqrt(2))) / 2),
        (nn.Softmax(-1), e / e.sum(-1, keepdims=True)),
        (nn.LogSoftmax(-1), np.log(e / e.sum(-1, keepdims=True))),
        (nn.Identity(), x),
        (nn.Flatten(0), x.reshape(-1)),
    ]:
        np.testing.assert_allclose(layer(t).numpy(), expected, rtol=1e-4, atol=1e-6, err_msg=repr(layer))
    t = t.clone()
    assert nn.ReLU(inplace=True)(t) is t and t.numpy().min() >= 0


def test_dropout():
    holon.manual_seed(3)
    x, layer = holon.ones(100, 100), nn.Dropout(0.25)
    y = layer(x).numpy()
    assert set(np.unique(y)) == {0, np.float32(1 / 0.75)} and abs((y == 0).mean() - 0.25) < 0.03
    assert layer.eval()(x) is x
    with pytest.raises(ValueError, match="p is 2"):
        nn.Dropout(2)


def test_losses():
    x, target = array(5, 3), np.array([0, 2, 1, 1, 2])
    logs = x - np.log(np.exp(x).sum(1, keepdims=True))
    np.testing.assert_allclose(
        nn.CrossEntropyLoss()(holon.tensor(x), holon.tensor(target)).item(), -logs[range(5), target].mean(), rtol=1e-5
    )
    y = array(5, 3, seed=1)
    for layer, each in ((nn.MSELoss, (x - y) ** 2), (nn.L1Loss, np.abs(x - y))):
        for reduction, expected in (("mean", each.mean()), ("sum", each.sum()), ("none", each)):
            np.testing.assert_allclose(layer(reduction)(holon.tensor(x), holon.tensor(y)).numpy(), expected, rtol=1e-5)
    with pytest.raises(ValueError, match="'mean', 'sum' or 'none'"):
        F.l1_loss(holon.ones(1), holon.ones(1), reduction="max")
    with pytest.raises(ValueError, match="same shape"):
        F.l1_loss(holon.ones(2), holon.ones(1))


def test_attention():
    q, k, v = (array(2, 4, 5, 3, seed=i) for i in range(3))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(3)
    scores = np.where(np.tril(np.ones((5, 5))) > 0, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ v
    q, k, v = (holon.tensor(a) for a in (q, k, v))
    np.testing.assert_allclose(
        F.scaled_dot_product_attention(q, k, v, is_causal=True).numpy(), expected, rtol=1e-4, atol=1e-5
    )
    mask = holon.ones(5, 5, dtype=holon.bool).tril()
    np.testing.assert_allclose(F.scaled_dot_product_attention(q, k, v, mask).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_init():
    holon.manual_seed(0)
    w = holon.empty(200, 100)
    for fill, std, bound in [
        (lambda: nn.init.normal_(w, 0, 0.5), 0.5, None),
        (lambda: nn.init.uniform_(w, -1, 1), 1 / math.sqrt(3), 1),
        (lambda: nn.init.xavier_normal_(w), math.sqrt(2 / 300), None),
        (lambda: nn.init.xavier_uniform_(w), math.sqrt(2 / 300), math.sqrt(6 / 300)),
        (lambda: nn.init.kaiming_normal_(w, nonlinearity="relu"), math.sqrt(2 / 100), None),
        (
            lambda: nn.init.kaiming_uniform_(w, mode="fan_out", nonlinearity="linear"),
            math.sqrt(1 / 200),
            math.sqrt(3 / 200),
        ),
        (lambda: nn.init.trunc_normal_(w, std=1.0, a=-1, b=1), 0.5396, 1),
    ]:
        assert fill() is w
        a = w.numpy()
        assert abs(a.std() - std) < 0.02 * std and abs(a.mean()) < 0.03 * std
        assert bound is None or np.abs(a).max() <= bound
    assert nn.init.constant_(w, 3).numpy().min() == 3 and nn.init.zeros_(w).numpy().max() == 0
    assert nn.init.ones_(nn.Parameter(holon.empty(2))).tolist() == [1, 1]
    with pytest.raises(ValueError, match="two axes"):
        nn.init.xavier_normal_(holon.empty(3))


def test_clip_grad_norm():
    a, b = nn.Parameter(holon.zeros(2)), nn.Parameter(holon.zeros(1))
    (a * holon.tensor([3.0, 0.0]) + b * 4.0).sum().backward()
    # b's gradient is 4 from each of the two elements: the norm is sqrt(9 + 64).
    assert nn.utils.clip_grad_norm_([a, b], 1.0) == pytest.approx(math.sqrt(73))
    assert math.hypot(*a.grad.tolist(), *b.grad.tolist()) == pytest.approx(1, rel=1e-4)
    a.grad = holon.tensor([3.0, -1.0])
    assert nn.utils.clip_grad_norm_([a], 100.0, norm_type=3) == pytest.approx(28 ** (1 / 3))


# Global


@pytest.mark.parametrize("sbp", [B, S(0), S(1)], ids=["B", "S0", "S1"])
def test_first_values_do_not_depend_on_the_layout(sbp):
    def values(ranks, sbp):
        def run(rank):
            holon.manual_seed(5)
            where = {"placement": holon.placement.all("cpu"), "sbp": sbp}
            made = [
                nn.Linear(5, 3, **where),
                nn.Conv2d(2, 3, 3, **where),
                nn.Embedding(5, 3, **where),
                nn.LayerNorm(3, placement=where["placement"], sbp=B),
            ]
            return [p.detach().numpy().tolist() for m in made for p in m.parameters()]

        results = holon.run_ranks(ranks, run)
        assert all(r == results[0] for r in results)
        return results[0]

    assert values(2, sbp) == values(1, B) == values(3, sbp)


@pytest.mark.parametrize("sbp, expected", [(B, (B,)), (S(0), (S(0),)), (S(1), (B,))], ids=["B", "S0", "S1"])
def test_bias_lies_beside_the_weight(sbp, expected):
    def run(rank):
        layer = nn.Linear(4, 6, placement=holon.placement.all("cpu"), sbp=sbp)
        assert layer.bias.sbp == expected and layer.weight.sbp == (sbp,)

    holon.run_ranks(2, run)


@pytest.mark.parametrize("sbps", [(B, B), (S(0), S(1)), (S(1), S(0))], ids=["data", "column_row", "row_column"])
def test_global_layers_compute_what_local_ones_do(sbps):
    x = array(5, 6)

    def build(where):
        holon.manual_seed(1)
        return nn.Sequential(nn.Linear(6, 8, **where(sbps[0])), nn.Tanh(), nn.Linear(8, 3, **where(sbps[1])))

    def run(rank):
        everywhere = holon.placement.all("cpu")
        model = build(lambda sbp: {"placement": everywhere, "sbp": sbp})
        y = model(holon.tensor(x, placement=everywhere, sbp=S(0)))
        y.square().sum().backward()
        for p in model.parameters():
            assert p.grad.sbp == p.sbp
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1e9).item()
        return y.detach().numpy(), [p.grad.numpy() for p in model.parameters()], norm

    (one,), results = holon.run_ranks(1, run), holon.run_ranks(2, run)
    for y, grads, norm in results:
        np.testing.assert_allclose(y, one[0], rtol=1e-5, atol=1e-6)
        for found, expected in zip(grads, one[1]):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
        assert norm == pytest.approx(one[2], rel=1e-5)


def test_module_to_global_and_back():
    def run(rank):
        everywhere = holon.placement.all("cpu")
        holon.manual_seed(2)
        model = nn.Linear(4, 3)
        weight, value = model.weight, model.weight.tolist()
        model.to_global(everywhere, B)
        assert model.weight is weight and weight.is_global and weight.sbp == (B,) and weight.tolist() == value
        model.to_global(sbp=lambda name: S(0) if name == "weight" else B)
        assert weight.sbp == (S(0),) and model.bias.sbp == (B,) and weight.tolist() == value and weight.requires_grad
        model.to_local()
        assert weight.is_local and len(weight) == (2, 1)[rank]
        # As in OneFlow, each rank's tensor is its piece.
        assert nn.Linear(4, 3).to_global(everywhere, S(0)).weight.shape == (6, 4)

    holon.run_ranks(2, run)


def test_load_state_dict_boxes_to_the_parameters_layout():
    def run(rank):
        everywhere = holon.placement.all("cpu")
        a, b = (nn.Linear(4, 3, placement=everywhere, sbp=sbp) for sbp in (B, S(1)))
        b.load_state_dict(a.state_dict())
        assert b.weight.sbp == (S(1),) and b.weight.tolist() == a.weight.tolist()
        with pytest.raises(RuntimeError, match="local / global mismatch: weight is local"):
            b.load_state_dict(nn.Linear(4, 3).state_dict())

    holon.run_ranks(2, run)


def test_a_layer_needs_placement_and_sbp():
    with pytest.raises(ValueError, match="sbp is given, placement is not"):
        nn.Linear(2, 2, sbp=B)
