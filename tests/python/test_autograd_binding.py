"""Backward, hooks and functions with a Python backward."""

import gc
import sys
import weakref

import pytest

from holon import _C

ops, tensor = _C.ops, _C.tensor


def test_backward_and_grad():
    x = tensor([1.0, 2.0], requires_grad=True)
    y = (x * x).sum()
    assert y.requires_grad and not y.is_leaf and y.grad_fn.name == "sum" and repr(y.grad_fn) == "<sum_backward>"
    assert y.grad_fn.next_functions[0][0].name == "mul" and y.grad_fn == y.grad_fn
    y.backward(retain_graph=True)
    assert x.grad.tolist() == [2, 4]
    y.backward()
    assert x.grad.tolist() == [4, 8]
    with pytest.raises(RuntimeError, match="freed by an earlier backward"):
        y.backward()
    z = x * 3
    z.backward(tensor([1.0, 10.0]))
    assert x.grad.tolist() == [7, 38]
    (g,) = _C.grad((x * x * x).sum(), x, create_graph=True)
    assert g.tolist() == [3, 12] and x.grad.tolist() == [7, 38]
    (h,) = _C.grad(g.sum(), [x])
    assert h.tolist() == [6, 12]
    assert _C.grad((x * 2).sum(), [x, tensor([1.0], requires_grad=True)], allow_unused=True)[1] is None


def test_errors():
    x = tensor([1.0, 2.0], requires_grad=True)
    for call, text in [
        (lambda: tensor([1.0]).backward(), "does not require grad"),
        (lambda: (x * 2).backward(), "only a tensor of one element"),
        (lambda: (x * 2).backward(tensor([1.0])), "They must be the same"),
        (lambda: _C.grad(x.sum(), tensor([1.0])), "does not require grad"),
        (lambda: x.add_(1), "cannot be changed in place"),
    ]:
        with pytest.raises(RuntimeError, match=text):
            call()
    with pytest.raises(TypeError, match="backward: grad_tensors must be Tensor or a list of them, got int 3"):
        (x * 2).backward(3)


def test_recording_is_turned_off():
    x = tensor([1.0], requires_grad=True)
    assert _C.set_grad_enabled(False) is True
    try:
        assert not (x * 2).requires_grad
        x.add_(1)
    finally:
        _C.set_grad_enabled(True)
    assert (x * 2).requires_grad and x.item() == 2 and x.detach().requires_grad is False
    y = x * 2
    y.detach_()
    assert y.is_leaf and not y.requires_grad


def test_hooks():
    x, seen = tensor([1.0, 2.0], requires_grad=True), []
    handle = x.register_hook(lambda g: seen.append(g.tolist()))
    doubled = x.register_hook(lambda g: g * 2)
    (x * 3).sum().backward()
    assert seen == [[3, 3]] and x.grad.tolist() == [6, 6]
    handle.remove()
    doubled.remove()
    (x * 3).sum().backward()
    assert len(seen) == 1 and x.grad.tolist() == [9, 9]
    y = x * 2
    y.retain_grad()
    y.register_hook(lambda g: g + 1)
    y.sum().backward()
    assert y.retains_grad and y.grad.tolist() == [2, 2]

    def fails(g):
        raise KeyError("in a hook")

    x.register_hook(fails)
    with pytest.raises(KeyError, match="in a hook"):
        x.sum().backward()
    with pytest.raises(TypeError, match="takes a function"):
        x.register_hook(3)


def test_a_leafs_hook_sees_the_sum_of_all_its_uses():
    x, seen = tensor([1.0, 2.0], requires_grad=True), []
    x.register_hook(lambda g: seen.append(g.tolist()))
    x.register_hook(lambda g: g * 2 + 1)
    (x.sum() + (x * 2).sum()).backward()
    assert seen == [[3, 3]] and x.grad.tolist() == [7, 7]
    ((g,)) = _C.grad([x.sum() + (x * 2).sum()], [x])
    assert g.tolist() == [7, 7] and x.grad.tolist() == [7, 7] and len(seen) == 2
    w = tensor([2.0], requires_grad=True)
    w.register_hook(lambda g: g * 3)
    (g,) = _C.grad([(w * w * w).sum()], [w], create_graph=True)
    assert g.tolist() == [36]
    assert _C.grad([g.sum()], [w])[0].tolist() == [108]  # of 9 w**2, hooked: 3 * 18 w


def test_functions_with_a_backward_in_python():
    x, w = tensor([1.0, 2.0], requires_grad=True), tensor([3.0, 4.0], requires_grad=True)
    grads_seen = []

    def backward(grads):
        grads_seen.append(grads)
        return [grads[0] * 10, None]

    def forward(tensors):
        return [tensors[0] * tensors[1], tensor([1, 2])]

    y, index = _C.apply_function("Mine", "", False, [x, w], forward, backward)
    assert y.grad_fn.name == "Mine" and not index.requires_grad
    y.sum().backward()
    assert x.grad.tolist() == [10, 10] and w.grad is None and grads_seen[0][1] is None
    with pytest.raises(RuntimeError, match="backward of Mine: its values were freed"):
        y.sum().backward()
    for result, text in [
        ([None], "returned 1 gradients for 2 inputs"),
        ([tensor([1.0]), None], r"gradient 0 has shape \[1\], its input \[2\]"),
    ]:
        y, _ = _C.apply_function("Mine", "", False, [x, w], forward, lambda grads, result=result: result)
        with pytest.raises(RuntimeError, match=text):
            y.sum().backward()
    y, _ = _C.apply_function("Mine", "", False, [x, w], forward, lambda grads: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        y.sum().backward()


def test_callables_are_released():
    class Callable:
        def __call__(self, g):
            return None

    x = tensor([1.0], requires_grad=True)
    hook, function = Callable(), lambda grads: grads
    w = weakref.ref(hook)
    y = x * 2
    y.register_hook(hook)
    before = sys.getrefcount(function)
    (z,) = _C.apply_function("F", "", False, [y], lambda tensors: [tensors[0].detach()], function)
    del hook, y, z
    gc.collect()
    assert w() is None and sys.getrefcount(function) == before


def test_long_chains_are_released():
    x = tensor([1.0], requires_grad=True)
    y = x
    for _ in range(100_000):
        y = y + 1
    y.backward()
    assert x.grad.item() == 1
    del y
