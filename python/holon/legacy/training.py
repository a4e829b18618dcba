"""The training step of a job: gradients of the sum of the losses, what is done to them before the update, and the update."""

from .. import _C
from ..autograd import grad, no_grad


def losses_of(job, values):
    """The loss tensors, parts of streams one by one."""
    found = []
    for blob in job.losses:
        v = values[blob]
        found += v if isinstance(v, list) else [v]
    return found


def gradients(job, values, wanted):
    """Of the sum of all losses' elements for each of the wanted tensors, None where it does not depend on one."""
    total = None
    for loss in losses_of(job, values):
        s = loss.sum()
        if total is not None and s.is_global and s.placement != total.placement:
            s = _C.on_stage(s, total.placement)
        total = s if total is None else total + s
    if not total.requires_grad:
        raise RuntimeError(f"{job.name}: the loss {job.losses[0]!r} depends on no variable that is trainable.")
    scale = _loss_scale(job.optimizer)
    if scale != 1:
        total = total * scale
    found = grad(total, wanted, allow_unused=True)
    return [g if g is None or scale == 1 else g / scale for g in found]


def _loss_scale(optimizer):
    factor = getattr(optimizer, "loss_scale_factor", None)
    return 1.0 if factor is None else float(factor)


def update(job, entries, count, states, numbers_at):
    """Updates variables and states in place. entries: (name, w, gradient of the sum); count: what the gradients are divided by;
    numbers_at(w): the learning rate and the number of the call as tensors where w is."""
    with no_grad():
        made = []
        for name, w, g in entries:
            if g.is_global and (g.placement != w.placement or g.sbp != w.sbp):
                g = g.to_global(w.placement, w.sbp)
            g = g / count
            regularizer = job.variables[name].declaration.regularizer
            if regularizer is not None:
                g = g + regularizer.gradient(w)
            made.append(g)
        clipping = getattr(job.optimizer, "grad_clipping", None)
        if clipping is not None:
            made = _clipped(clipping, made)
        groups = {}
        for (name, w, _), g in zip(entries, made):
            key = w.placement if w.is_global else None
            groups.setdefault(key, []).append((name, w, g, states[name]))
        for group in groups.values():
            job.optimizer.update(group, *numbers_at(group[0][1]))


def _clipped(clipping, gradients):
    if not gradients[0].is_global or len({g.placement for g in gradients}) == 1:
        return clipping.apply(gradients)
    # A norm over gradients of several scopes: they meet on all ranks, and go back.
    everywhere = _C.placement.all(gradients[0].placement.type)
    together = clipping.apply([g.to_global(everywhere, _C.sbp.broadcast) for g in gradients])
    return [c.to_global(g.placement, g.sbp) for c, g in zip(together, gradients)]
