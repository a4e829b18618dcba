"""Functions of a user's that run before and after a module's forward,
and with the gradients of its inputs and outputs."""

from itertools import count

from .. import _C
from ..autograd import Function

_numbers = count()


class RemovableHandle:
    """Takes a hook away again: `remove()`, or the end of a `with` block."""

    def __init__(self, hooks, hook, prepend=False):
        self._hooks, self._number = hooks, next(_numbers)
        if prepend:
            others = list(hooks.items())
            hooks.clear()
            hooks[self._number] = hook
            hooks.update(others)
        else:
            hooks[self._number] = hook
        _C.note_module_change()

    def remove(self):
        self._hooks.pop(self._number, None)
        _C.note_module_change()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.remove()


def hooks_of(module):
    """The numbers of a module's hooks of each kind; () where it has none."""
    kinds = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    return tuple(map(tuple, kinds)) if any(kinds) else ()


def call(module, args, kwargs):
    """module.forward(*args, **kwargs) with all hooks of the module around it."""
    for hook, with_kwargs in list(module._forward_pre_hooks.values()):
        if with_kwargs:
            changed = hook(module, args, kwargs)
            if changed is not None:
                if not (isinstance(changed, tuple) and len(changed) == 2):
                    raise RuntimeError(
                        f"a forward pre-hook with kwargs of {type(module).__name__} must return None or "
                        f"(args, kwargs), not {type(changed).__name__}."
                    )
                args, kwargs = changed
        else:
            changed = hook(module, args)
            if changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
    backward = _BackwardHooks(module) if module._backward_hooks or module._backward_pre_hooks else None
    if backward:
        args = backward.watch_inputs(args)
    result = module.forward(*args, **kwargs)
    for hook, with_kwargs in list(module._forward_hooks.values()):
        changed = hook(module, args, kwargs, result) if with_kwargs else hook(module, args, result)
        if changed is not None:
            result = changed
    return backward.watch_outputs(result) if backward else result


class _Seam(Function):
    """Hands tensors through, and their gradients through `seen`."""

    @staticmethod
    def forward(ctx, seen, *tensors):
        ctx.seen = seen
        return tensors

    @staticmethod
    def backward(ctx, *grads):
        return (None, *ctx.seen(grads))


class _BackwardHooks:
    """One call of a module with backward hooks:
    a seam before and one behind forward, between which gradients are seen."""

    def __init__(self, module):
        self._module, self._grad_output, self._watches_inputs = module, None, False

    def watch_inputs(self, args):
        self._n_inputs = len(args)
        self._at = [i for i, a in enumerate(args) if isinstance(a, _C.Tensor)]
        self._watches_inputs = _C.is_grad_enabled() and any(args[i].requires_grad for i in self._at)
        if not self._watches_inputs:
            return args
        changed = list(args)
        for i, tensor in zip(self._at, _Seam.apply(self._inputs_seen, *(args[i] for i in self._at))):
            changed[i] = tensor
        return tuple(changed)

    def watch_outputs(self, result):
        one = isinstance(result, _C.Tensor)
        results = [result] if one else list(result) if isinstance(result, (tuple, list)) else []
        at = [i for i, r in enumerate(results) if isinstance(r, _C.Tensor)]
        if not (_C.is_grad_enabled() and any(results[i].requires_grad for i in at)):
            return result
        for i, tensor in zip(at, _Seam.apply(self._outputs_seen, *(results[i] for i in at))):
            results[i] = tensor
        return results[0] if one else type(result)(results)

    def _outputs_seen(self, grads):
        for hook in list(self._module._backward_pre_hooks.values()):
            changed = hook(self._module, tuple(grads))
            if changed is not None:
                grads = changed if isinstance(changed, tuple) else (changed,)
        self._grad_output = tuple(grads)
        if not self._watches_inputs:
            self._run_hooks((None,) * self._n_inputs)
        return grads

    def _inputs_seen(self, grads):
        whole = [None] * self._n_inputs
        for i, g in zip(self._at, grads):
            whole[i] = g
        whole = self._run_hooks(tuple(whole))
        return [whole[i] for i in self._at]

    def _run_hooks(self, grad_input):
        for hook in list(self._module._backward_hooks.values()):
            changed = hook(self._module, grad_input, self._grad_output)
            if changed is not None:
                changed = changed if isinstance(changed, tuple) else (changed,)
                if len(changed) != len(grad_input):
                    raise RuntimeError(
                        f"a full backward hook of {type(self._module).__name__} returned {len(changed)} gradients "
                        f"for {len(grad_input)} inputs."
                    )
                grad_input = changed
        return grad_input
