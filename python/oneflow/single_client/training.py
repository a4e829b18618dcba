"""The training step of a job: gradients of the sum of the losses, what is done to them before the update,
and the update."""

from holon import _C
from holon.autograd import grad, no_grad


def gradients(job, values, wanted, scale):
    """Of the sum of all losses' elements for each of the wanted tensors, None where it does not depend on one;
    times scale, unless None."""
    total = None
    for blob in job.losses:
        parts = values[blob]
        for loss in parts if isinstance(parts, list) else [parts]:
            s = loss.sum()
            total = s if total is None else total + on_placement(s, total)
    if not total.requires_grad:
        raise RuntimeError(f"{job.name}: the loss {job.losses[0]!r} depends on no variable that is trainable.")
    if scale is not None:
        total = total * on_placement(scale, total)
    return grad(total, wanted, allow_unused=True)


def on_placement(t, like):
    """t where like is."""
    return _C.on_stage(t, like.placement) if t.is_global and t.placement != like.placement else t


def watched(g, t, scale):
    """The gradient of t without the loss scale, zeros where no loss depends on t."""
    if g is None:
        return _C.ops["zeros_like"](t)
    return g if scale is None else g / on_placement(scale, g)


def update(job, entries, count, states, lr, t, scale):
    """Updates variables and their states in place. entries: (name, w, gradient of the sum); count: what that is divided
    by; lr, t, scale: the learning rate, the number of the call, and None or the factor of the gradients, tensors
    without axes.

    Returns whether all gradients were finite, where the scale is dynamic: else nothing has changed. Without that, None.
    """
    dynamic = job.optimizer.loss_scale is not None and job.optimizer.loss_scale.is_dynamic
    with no_grad():
        made = []
        for _, w, g in entries:
            if g.is_global and (g.placement != w.placement or g.sbp != w.sbp):
                g = g.to_global(w.placement, w.sbp)
            g = g / on_placement(count, g) if isinstance(count, _C.Tensor) else g / count
            if scale is not None:
                g = g / on_placement(scale, g)
            made.append(g)
        finite = _all_finite(made, scale) if dynamic else None
        for i, (name, w, _) in enumerate(entries):
            regularizer = job.variables[name].declaration.regularizer
            if regularizer is not None:
                made[i] = made[i] + regularizer.gradient(w)
        if job.optimizer.grad_clipping is not None:
            made = job.optimizer.grad_clipping.apply(made)
        kept = []
        if dynamic:
            kept = [(v, v.detach().clone()) for name, w, _ in entries for v in (w, *states[name].values())]
        job.optimizer.update([(name, w, g, states[name]) for (name, w, _), g in zip(entries, made)], lr, t)
        for v, old in kept:
            v.copy_(_C.ops["where"](on_placement(finite, v), v, old))
        return finite


def _all_finite(gradients, beside):
    finite = None
    for g in gradients:
        f = on_placement(g.isfinite().all(), beside)
        finite = f if finite is None else finite & f
    return finite


class LossScale:
    """The factor of the losses from call to call, on one rank."""

    def __init__(self, job):
        policy = getattr(job.optimizer, "loss_scale", None)
        self.policy, self.value, self.good_steps = policy, policy and policy.initial, 0

    def after(self, finite):
        """finite: whether the gradients of the call were, where that is known."""
        if finite is not None:
            self.value, self.good_steps = self.policy.after(self.value, self.good_steps, finite)
