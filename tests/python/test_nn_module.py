"""Module: hooks, state, conversions and layouts of a whole model, containers; beyond the basics in test_nn.py."""

import copy
import pickle
from collections import OrderedDict

import numpy as np
import pytest

import holon
from holon import nn

B, S = holon.sbp.broadcast, holon.sbp.split


class Tied(nn.Module):
    def __init__(self, **where):
        super().__init__()
        self.table = nn.Embedding(6, 4, **where)
        self.head = nn.Linear(4, 6, bias=False, **where)
        self.head.weight = self.table.weight

    def forward(self, x):
        return self.head(self.table(x))


# Names


def test_names_of_shared_parameters_and_modules():
    model = nn.Module()
    model.a = nn.Linear(2, 2)
    model.b = model.a
    assert [n for n, _ in model.named_parameters()] == ["a.weight", "a.bias"]
    assert [n for n, _ in model.named_parameters(remove_duplicate=False)] == [
        "a.weight",
        "a.bias",
        "b.weight",
        "b.bias",
    ]
    assert [n for n, _ in model.named_modules()] == ["", "a"]
    assert [n for n, _ in model.named_modules(remove_duplicate=False)] == ["", "a", "b"]
    assert [n for n, _ in model.named_children()] == ["a"]
    tied = Tied()
    assert [n for n, _ in tied.named_parameters(remove_duplicate=False)] == ["table.weight", "head.weight"]
    assert [n for n, _ in tied.named_parameters(prefix="m")] == ["m.table.weight"]
    assert list(nn.Sequential(nn.Linear(1, 1)).parameters(recurse=False)) == []


def test_paths():
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Sequential(nn.Linear(2, 2)))
    assert model.get_buffer("0.running_mean") is model[0].running_mean
    assert model.get_parameter("1.0.weight") is model[1][0].weight and model.get_submodule("") is model
    with pytest.raises(AttributeError, match=r"no buffer 'nothing' \(of '0.nothing'\)"):
        model.get_buffer("0.nothing")
    with pytest.raises(AttributeError, match="no submodule 'up'"):
        model.get_parameter("1.up.weight")


def test_registration():
    m = nn.Module()
    m.register_module("child", nn.ReLU())
    m.register_parameter("none", None)
    m.register_buffer("empty", None)
    assert list(m.parameters()) == list(m.buffers()) == [] and m.state_dict() == {}
    m.none = nn.Parameter(holon.ones(1))
    m.empty = holon.ones(2)
    assert set(m.state_dict()) == {"none", "empty"}
    for wrong in ("a.b", "", 3):
        with pytest.raises(KeyError, match="cannot be a name"):
            m.add_module(wrong, nn.ReLU())
    with pytest.raises(TypeError, match="must be a Module or None, not int"):
        m.add_module("x", 1)
    with pytest.raises(TypeError, match="must be a Parameter or None, not Tensor"):
        m.register_parameter("x", holon.ones(1))
    with pytest.raises(TypeError, match="must be a tensor or None, not list"):
        m.register_buffer("x", [1])


# Hooks


def test_hooks_with_kwargs_in_order():
    class Scaled(nn.Module):
        def forward(self, x, *, by=1):
            return x * by

    m, calls = Scaled(), []
    m.register_forward_pre_hook(lambda mod, args, kwargs: (args, {"by": kwargs["by"] + 1}), with_kwargs=True)
    m.register_forward_hook(
        lambda mod, args, kwargs, result: calls.append(("second", kwargs["by"], result.item())), with_kwargs=True
    )
    first = m.register_forward_hook(lambda mod, args, result: calls.append("first"), prepend=True)
    assert m(holon.tensor(2.0), by=3).item() == 8
    assert calls == ["first", ("second", 4, 8.0)]
    with first:
        pass
    m(holon.tensor(1.0), by=0)
    assert calls[2:] == [("second", 1, 1.0)]
    m.register_forward_pre_hook(lambda mod, args, kwargs: args, with_kwargs=True)
    with pytest.raises(RuntimeError, match=r"must return None or \(args, kwargs\)"):
        m(holon.tensor(1.0), by=0)


def test_hooks_without_a_kept_handle_all_stay():
    m, calls = nn.Identity(), []
    for i in range(20):
        m.register_forward_hook(lambda mod, args, result, i=i: calls.append(i))
    m(holon.ones(1))
    assert calls == list(range(20))


def test_full_backward_hooks():
    layer, seen = nn.Linear(2, 1, bias=False), []
    layer.register_full_backward_hook(lambda m, grad_input, grad_output: seen.append((grad_input, grad_output)))
    x = holon.tensor([[1.0, 2.0]], requires_grad=True)
    (layer(x) * 3).sum().backward()
    (grad_input,), (grad_output,) = seen.pop()
    assert grad_output.tolist() == [[3.0]]
    np.testing.assert_allclose(grad_input.numpy(), 3 * layer.weight.detach().numpy(), rtol=1e-6)
    np.testing.assert_allclose(x.grad.numpy(), grad_input.numpy())
    # Where no input has a gradient the hook runs all the same.
    layer.zero_grad()
    layer(holon.ones(1, 2)).sum().backward()
    grad_input, (grad_output,) = seen.pop()
    assert grad_input == (None,) and grad_output.tolist() == [[1.0]]
    assert layer.weight.grad.tolist() == [[1.0, 1.0]]
    with holon.no_grad():
        layer(x)
    assert not seen


def test_backward_hooks_change_gradients():
    layer = nn.Identity()
    before = layer.register_full_backward_pre_hook(lambda m, grad_output: (grad_output[0] * 2,))
    after = layer.register_full_backward_hook(lambda m, grad_input, grad_output: (grad_input[0] + grad_output[0] * 10,))
    x = holon.ones(2, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad.tolist() == [22.0, 22.0]
    before.remove()
    after.remove()
    x.grad = None
    layer(x).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]
    layer.register_full_backward_hook(lambda m, grad_input, grad_output: (None, None))
    with pytest.raises(RuntimeError, match="returned 2 gradients for 1 inputs"):
        layer(x).sum().backward()


def test_state_dict_hooks():
    model = nn.Sequential(nn.Linear(1, 1))
    model[0].register_state_dict_post_hook(
        lambda m, state, prefix, meta: state.update({prefix + "kernel": state.pop(prefix + "weight")})
    )
    model[0].register_load_state_dict_pre_hook(
        lambda m, state, prefix, *_: (
            state.update({prefix + "weight": state.pop(prefix + "kernel")}) if prefix + "kernel" in state else None
        )
    )
    seen = []
    model.register_state_dict_pre_hook(lambda m, prefix, keep_vars: seen.append((prefix, keep_vars)))
    model.register_load_state_dict_post_hook(lambda m, result: seen.append(result.missing_keys))
    state = model.state_dict()
    assert set(state) == {"0.kernel", "0.bias"} and seen == [("", False)]


# State


def test_load_state_dict_lists_all_that_is_wrong():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    state = {"0.weight": holon.ones(3, 3), "0.bias": holon.ones(3), "1.weight": [1], "up": holon.ones(1)}
    with pytest.raises(RuntimeError) as raised:
        model.load_state_dict(state)
    for part in (
        "missing: 1.bias",
        "unexpected: up",
        r"0.weight is [3, 3], the module's is [3, 2]",
        "1.weight is a list, not a tensor",
    ):
        assert part in str(raised.value)
    with pytest.raises(TypeError, match="takes a dict"):
        model.load_state_dict([1])


def test_assign_takes_the_tensors():
    layer, weight = nn.Linear(2, 2), holon.ones(2, 2, dtype=holon.float64)
    kept = layer.weight
    layer.load_state_dict({"weight": weight, "bias": layer.bias}, assign=True)
    assert layer.weight is kept and kept.dtype == holon.float64 and kept.requires_grad and kept.is_leaf
    weight.fill_(5)
    assert kept.tolist() == [[5, 5], [5, 5]]


def test_tied_weights_stay_tied():
    model = Tied()
    state = model.state_dict()
    assert set(state) == {"table.weight", "head.weight"}
    other = Tied()
    other.load_state_dict(state)
    assert other.table.weight.tolist() == model.table.weight.tolist()
    for changed in (model.double(), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert changed.head.weight is changed.table.weight and changed.head.weight.dtype == holon.float64
        assert len(list(changed.parameters())) == 1

    def run(rank):
        tied = Tied()
        tied.to_global(holon.placement.all("cpu"), B)
        tied.to_global(sbp={"table.*": S(0)})
        assert tied.head.weight is tied.table.weight and tied.head.weight.sbp == (S(0),)

    holon.run_ranks(2, run)


def test_pickle_keeps_a_model():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(2, 2))
    model[2].bias.requires_grad = False
    model.eval()
    again = pickle.loads(pickle.dumps(model))
    assert repr(again) == repr(model) and not again[1].training and type(again[0].weight) is nn.Parameter
    assert [p.requires_grad for p in again.parameters()] == [p.requires_grad for p in model.parameters()]
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(again.state_dict()[name].numpy(), value.numpy())


# Conversions


def test_to():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert model.half()[0].weight.dtype == holon.float16 and model.bfloat16()[1].running_mean.dtype == holon.bfloat16
    assert model.to(holon.ones(1, dtype=holon.float64))[0].bias.dtype == holon.float64
    assert model.to("cpu", holon.float32)[0].bias.dtype == holon.float32
    assert model.to(dtype=holon.float64, device="cpu")[0].bias.dtype == holon.float64
    assert model[1].num_batches_tracked.dtype == holon.int64
    assert model.type(holon.float32)[1].num_batches_tracked.dtype == holon.float32
    with pytest.raises(TypeError, match="must be floating point numbers"):
        model.to(holon.int32)
    with pytest.raises(ValueError, match="mode must be a bool"):
        model.train(1)


def test_gradients_are_converted_too():
    layer = nn.Linear(2, 1)
    layer(holon.ones(1, 2)).sum().backward()
    layer.double()
    assert layer.weight.grad.dtype == holon.float64 and layer.weight.grad.tolist() == [[1, 1]]


def test_to_global_by_name_keeps_what_an_optimizer_holds():
    def run(rank):
        everywhere = holon.placement.all("cpu")
        holon.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
        optimizer = holon.optim.SGD(model.parameters(), lr=0.5)
        model.to_global(everywhere, {"0.*": B, "*": B})
        before = [p.detach().numpy().copy() for p in model.parameters()]
        model.to_global(everywhere, {"0.*": S(0), "2.weight": S(1), "2.bias": B})
        assert [p.sbp for p in model.parameters()] == [(S(0),), (S(0),), (S(1),), (B,)]
        for p, value in zip(model.parameters(), before):
            np.testing.assert_array_equal(p.detach().numpy(), value)
        model(holon.ones(3, 4, placement=everywhere, sbp=B)).sum().backward()
        assert all(p.grad.sbp == p.sbp for p in model.parameters())
        optimizer.step()
        np.testing.assert_allclose(model[2].bias.detach().numpy(), before[3] - 1.5, rtol=1e-5)
        # With their gradients.
        model.to_global(sbp=B)
        assert all(p.grad.sbp == p.sbp == (B,) for p in model.parameters())
        model.to_global(sbp=lambda name: S(0) if name == "0.weight" else None)
        assert model[0].weight.sbp == (S(0),) and model[0].bias.sbp == (B,)
        with pytest.raises(ValueError, match="no pattern of sbp fits '0.bias'"):
            model.to_global(sbp={"*.weight": B})
        with pytest.raises((ValueError, RuntimeError), match="0.bias of Sequential"):
            model.to_global(sbp={"*.weight": B, "*": S(1)})

    holon.run_ranks(2, run)


# Containers


def test_module_list_is_a_list():
    a, b, c = nn.ReLU(), nn.Tanh(), nn.Sigmoid()
    m = nn.ModuleList([a]) + [b]
    m += [c]
    assert list(m) == [a, b, c] and b in m and m[-1] is c and list(m[::2]) == [a, c] and type(m[1:]) is nn.ModuleList
    assert m.pop(0) is a and list(m) == [b, c] and [n for n, _ in m.named_children()] == ["0", "1"]
    assert m.insert(1, a) is m and list(m) == [b, a, c]
    m[1] = nn.GELU()
    del m[0:1]
    assert [type(x).__name__ for x in m] == ["GELU", "Sigmoid"]
    with pytest.raises(TypeError, match="must be a Module"):
        m.append(1)
    for at in (5, -3):
        with pytest.raises(IndexError, match="it holds 2"):
            m[at]
    with pytest.raises(IndexError):
        del m[7]


def test_repr_joins_equal_neighbours():
    assert (
        repr(nn.ModuleList([nn.Linear(1, 2), nn.Linear(1, 2), nn.ReLU()]))
        == """ModuleList(
  (0-1): 2 x Linear(in_features=1, out_features=2, bias=True)
  (2): ReLU()
)"""
    )
    assert repr(nn.ModuleList()) == "ModuleList()"
    assert repr(nn.ParameterList([holon.ones(2, 3)])).startswith("ParameterList(")


def test_sequential_by_name():
    s = nn.Sequential(OrderedDict(up=nn.Linear(1, 2), act=nn.ReLU()))
    assert s.up.out_features == 2 and [n for n, _ in s.named_children()] == ["up", "act"]
    assert isinstance(s[0], nn.Linear) and type(s[:1]) is nn.Sequential
    assert len(s + [nn.Tanh()]) == 3
    assert s.extend([nn.Tanh()]) is s and len(s) == 3


def test_module_dict_is_a_dict():
    d = nn.ModuleDict([("a", nn.ReLU()), ("b", nn.Tanh())])
    d.update({"c": nn.Linear(1, 1)})
    assert list(d) == ["a", "b", "c"] == list(d.keys()) and len(list(d.values())) == 3
    assert isinstance(d.pop("b"), nn.Tanh) and d.pop("b", None) is None and d.get("b") is None
    assert d.setdefault("e", nn.ReLU()) is d["e"] and d.popitem()[0] == "e" and list(reversed(d)) == ["c", "a"]
    assert [n for n, _ in d.named_parameters()] == ["c.weight", "c.bias"]
    d.clear()
    assert len(d) == 0
    for call in (lambda: d["x"], lambda: d.pop("x"), d.popitem, lambda: d.__delitem__("x")):
        with pytest.raises(KeyError):
            call()


def test_parameter_containers():
    p = nn.ParameterList([holon.ones(2)])
    p.append(nn.Parameter(holon.zeros(3)))
    p[0] = holon.zeros(1)
    assert [n for n, _ in p.named_parameters()] == ["0", "1"] and all(isinstance(x, nn.Parameter) for x in p)
    d = nn.ParameterDict({"a": holon.ones(2)})
    d["b"] = holon.ones(1)
    assert [n for n, _ in d.named_parameters()] == ["a", "b"] and (d | {"c": holon.ones(1)}).keys() == {"a", "b", "c"}
    assert d.copy()["a"] is d["a"] and list(d.fromkeys(["x"], holon.ones(1))) == ["x"]
    assert set(d.state_dict()) == {"a", "b"}
    with pytest.raises(TypeError, match="'c' must be a tensor"):
        d["c"] = 3
    m = nn.Module()
    m.weights = d
    d |= {"z": holon.ones(1)}
    assert [n for n, _ in m.named_parameters()] == ["weights.a", "weights.b", "weights.z"]


def test_a_submodule_may_have_a_methods_name():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.modules = nn.ModuleList([nn.Linear(2, 3)])

    net = Net()
    assert [n for n, _ in net.named_parameters()] == ["modules.0.weight", "modules.0.bias"]
    assert len(list(net.modules())) == 3 and net.eval().training is False
    with pytest.raises(KeyError, match="an attribute 'modules' already"):
        net2 = nn.Module()
        net2.add_module("modules", nn.Linear(1, 1))


def test_optimizers_and_parameters_are_strict_as_pytorchs():
    with pytest.raises(ValueError, match="no parameters"):
        holon.optim.SGD([], lr=0.1)
    with pytest.raises(RuntimeError, match="only floating point"):
        nn.Parameter(holon.tensor([1, 2]))
    assert not nn.Parameter(holon.tensor([1, 2]), requires_grad=False).requires_grad
