"""checkpoint: what a function computes inside is computed again in backward instead of kept."""

from .. import _C
from ..amp import autocast
from ..autograd import Function, backward, enable_grad

__all__ = ["checkpoint", "checkpoint_sequential"]


class _Checkpoint(Function):
    @staticmethod
    def forward(ctx, run, preserve, *tensors):
        ctx.run = run
        ctx.draws = _C.get_rng_state() if preserve else None
        ctx.casts = _C.autocast_mode()
        ctx.save_for_backward(*tensors)
        return run(tensors)

    @staticmethod
    def backward(ctx, *grads):
        inputs = []
        for t, needs in zip(ctx.saved_tensors, ctx.needs_input_grad[2:]):
            again = t.detach()
            again.requires_grad = needs
            inputs.append(again)
        # The same draws as the first time, so that dropout has the same mask.
        now = _C.get_rng_state()
        if ctx.draws is not None:
            _C.set_rng_state(ctx.draws)
        try:
            on, dtype, _, _, block, recipe = ctx.casts
            with enable_grad(), autocast("cpu", dtype=dtype, enabled=on, float8_block=block, recipe=recipe):
                results = ctx.run(inputs)
        finally:
            _C.set_rng_state(now)
        results = results if isinstance(results, (tuple, list)) else [results]
        pairs = [
            (r, g) for r, g in zip(results, grads) if isinstance(r, _C.Tensor) and r.requires_grad and g is not None
        ]
        if pairs:
            backward([r for r, _ in pairs], [g for _, g in pairs])
        return (None, None, *(t.grad if t.requires_grad else None for t in inputs))


def checkpoint(function, *args, use_reentrant=True, preserve_rng_state=True, **kwargs):
    """Returns function(*args, **kwargs). Of what it computes inside nothing is kept: backward computes it again.

    At least one tensor of args must require grad, or else nothing inside gets a gradient. preserve_rng_state: random
    numbers come out as the first time. In a graph, activation_checkpointing of a GraphModule is the same.
    """
    if (
        _C.capture_open()
        or not _C.is_grad_enabled()
        or not any(isinstance(a, _C.Tensor) and a.requires_grad for a in args)
    ):
        return function(*args, **kwargs)
    at = [i for i, a in enumerate(args) if isinstance(a, _C.Tensor)]

    def run(tensors):
        given = list(args)
        for i, t in zip(at, tensors):
            given[i] = t
        return function(*given, **kwargs)

    return _Checkpoint.apply(run, preserve_rng_state, *(args[i] for i in at))


def checkpoint_sequential(functions, segments, input, **kwargs):
    """Runs modules one after the other in so many segments, each but the last as by checkpoint()."""
    functions = list(functions)
    if not 1 <= segments <= len(functions):
        raise ValueError(
            f"checkpoint_sequential: {segments} segments of {len(functions)} functions; "
            "there must be from 1 to as many."
        )
    each = len(functions) // segments

    def chain(begin, end):
        def run(x):
            for f in functions[begin:end]:
                x = f(x)
            return x

        return run

    for s in range(segments - 1):
        input = checkpoint(chain(s * each, (s + 1) * each), input, **kwargs)
    return chain((segments - 1) * each, len(functions))(input)
