"""relayout: what a running job holds moves to another layout."""

from fnmatch import fnmatchcase

from . import _C
from .nn.module import Module
from .nn.parameter import is_function, layout
from .optim.optimizer import Optimizer


def relayout(objects, plan):
    """Moves what a running job holds to another layout, without files: the parameters and buffers of modules, their
    gradients, and optimizers' states, which follow their parameters. Returns how many bytes this rank has taken from
    others. Collective over all ranks.

    objects: a Module or Optimizer, or a list of them; the parameters of an optimizer must be in one of the modules.

    plan: where each parameter and buffer goes, a pair (placement, sbp). The sbp is as in Module.to_global: one for all,
    a dict from patterns of names, or a function of the name. Or a dict from patterns of names ("blocks.0.*"; the first
    that fits counts) to such pairs, or a function from a name to one, for tensors on different placements, such as the
    stages of a pipeline; what gets None stays as it is. Splits of axes that a tensor lacks are broadcast.

    All objects stay the same: modules, optimizers and graphs go on with the tensors in their new layout, and graphs are
    captured again. Each rank takes every element that it lacks once. What a rank holds meanwhile is at most the larger
    of what it holds before and after, and the parts of one tensor.

    Errors, before anything is moved: a local tensor that gets a layout, a layout that does not fit, ranks that ask for
    different ones (ValueError); something else among the objects (TypeError). If a rank fails in the middle, all
    raise, and some tensors have their new layout, others the old: load a checkpoint then.

    Example: flow.relayout([model, optimizer], (flow.placement("cpu", [0, 1, 2, 3]), {"*.weight": S(0), "*": B}))
    """
    objects = objects if isinstance(objects, (list, tuple)) else [objects]
    for item in objects:
        if not isinstance(item, (Module, Optimizer)):
            raise TypeError(f"relayout: objects are modules and optimizers, got {type(item).__name__}.")
    where = _plan(plan)
    known, moves = {}, []
    for module in (item for item in objects if isinstance(item, Module)):
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if id(tensor) in known:
                continue
            known[id(tensor)] = name, (to := where(name))
            moves.append((name, tensor, to))
            if tensor.grad is not None:
                moves.append((f"{name}.grad", tensor.grad, to))
    for optimizer in (item for item in objects if isinstance(item, Optimizer)):
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for p in parameters:
            if id(p) not in known:
                raise ValueError(
                    f"relayout: a parameter {list(p.shape)} of {type(optimizer).__name__} is in none of the modules. "
                    "Pass its module, too."
                )
            name, to = known[id(p)]
            for key, value in optimizer.state.get(p, {}).items():
                if isinstance(value, _C.Tensor) and value.is_global:
                    moves.append((f"{name}.{key}", value, to))
    moves = [move for move in moves if move[2] is not None]
    names, tensors, layouts = zip(*moves, strict=True) if moves else ((), (), ())
    return _C.relayout(list(names), list(tensors), [to[0] for to in layouts], [to[1] for to in layouts])


def _plan(plan):
    """A function from a name to a pair of placement and sbp, or None."""
    if isinstance(plan, dict):

        def of(name):
            for pattern, pair in plan.items():
                if fnmatchcase(name, pattern):
                    return pair if pair is None else _pair(name, pair)
            raise ValueError(
                f"relayout: no pattern of the plan fits '{name}': it has {', '.join(map(repr, plan)) or 'none'}. "
                "Add it, or '*': None for all others."
            )

        return of
    if is_function(plan):

        def of_function(name):
            pair = plan(name)
            return pair if pair is None else _pair(name, pair)

        return of_function
    placement, sbp = _pair("plan", plan)
    sbp_of = layout(sbp)

    def of_all(name):
        sbp = sbp_of(name)
        return None if sbp is None else (placement, sbp)

    return of_all


def _pair(name, pair):
    if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], _C.placement):
        raise TypeError(f"relayout: '{name}' needs a pair (placement, sbp) or None, got {pair!r}.")
    return pair
