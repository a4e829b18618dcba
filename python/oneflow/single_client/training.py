"""The training step of a job: gradients of the sum of the losses, what is done to them, and the update."""

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


def averaged(job, entries, count, scale):
    """(what the optimizer takes for the gradients, whether they were finite). entries: (name, w, gradient of the sum);
    count: what that is divided by; scale: None or the factor of the gradients, a tensor without axes.

    Whether they were finite is None unless the scale is dynamic.
    """
    with no_grad():
        made = []
        for _, w, g in entries:
            if g.is_global and (g.placement != w.placement or g.sbp != w.sbp):
                g = g.to_global(w.placement, w.sbp)
            g = g / on_placement(count, g) if isinstance(count, _C.Tensor) else g / count
            if scale is not None:
                g = g / on_placement(scale, g)
            made.append(g)
        dynamic = job.optimizer.loss_scale is not None and job.optimizer.loss_scale.is_dynamic
        finite = _all_finite(made, scale) if dynamic else None
        for i, (name, w, _) in enumerate(entries):
            regularizer = job.variables[name].declaration.regularizer
            if regularizer is not None:
                made[i] = made[i] + regularizer.gradient(w)
        if job.optimizer.grad_clipping is not None:
            made = job.optimizer.grad_clipping.apply(made)
        return made, finite


def update(job, variables, gradients, states, numbers, finite, scale):
    """Updates variables, as (name, w), and their states in place, and then the loss scale; gradients that are not
    finite leave the step out. numbers: the learning rate and the number of the call."""
    finite = None if finite is None else bool((finite.to_local() if finite.is_global else finite).item())
    if finite is not False:
        with no_grad():
            entries = [(name, w, g, states[name]) for (name, w), g in zip(variables, gradients)]
            job.optimizer.update(entries, *numbers)
    scale.after(finite)


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
