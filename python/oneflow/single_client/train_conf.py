"""The first versions' way of describing an optimizer:
dicts in function_config().train, with losses.add_loss in the job's body."""

from . import optimizer as _optimizer
from . import schedulers as _schedulers

_RULES = {
    "naive_conf": (lambda lr, **o: _optimizer.SGD(lr, momentum=0, **o), {}),
    "momentum_conf": (_optimizer.SGD, {"beta": "momentum"}),
    "adam_conf": (_optimizer.Adam, {}),
    "lazy_adam_conf": (_optimizer.LazyAdam, {}),
    "lars_conf": (_optimizer.LARS, {}),
    "rmsprop_conf": (_optimizer.RMSProp, {}),
    "lamb_conf": (_optimizer.LAMB, {}),
}
_STEPS = {"decay_batches": "steps"}
_DECAYS = {
    "exponential_conf": (_schedulers.ExponentialScheduler, _STEPS),
    "inverse_time_conf": (_schedulers.InverseTimeScheduler, _STEPS),
    "natural_exp_conf": (_schedulers.NaturalExpScheduler, _STEPS),
    "polynomial_conf": (_schedulers.PolynomialScheduler, _STEPS),
    "cosine_conf": (_schedulers.CosineScheduler, _STEPS),
    "linear_cosine_conf": (_schedulers.LinearCosineScheduler, _STEPS),
    "piecewise_scaling_conf": (_schedulers.PiecewiseScalingScheduler, {"scales": "scale"}),
    "piecewise_constant_conf": (lambda base_lr, **o: _schedulers.PiecewiseConstantScheduler(**o), {}),
}
_WARMUPS = {
    "linear_conf": (_schedulers.warmup.linear, {"warmup_batches": "steps"}),
    "constant_conf": (_schedulers.warmup.constant, {"warmup_batches": "steps"}),
}


def _one(conf, table, what):
    """What the one entry of conf names in the table, and its options by their later names."""
    if not isinstance(conf, dict) or len(conf) != 1 or next(iter(conf)) not in table:
        raise ValueError(f"{what}: {conf!r} must be a dict with one of {', '.join(table)}.")
    ((kind, options),) = conf.items()
    make, names = table[kind]
    return kind, make, {names.get(k, k): v for k, v in (options or {}).items()}


def _made(kind, make, *args, **options):
    try:
        return make(*args, **options)
    except TypeError as error:
        raise ValueError(f"{kind}: the options {options} do not fit: {error}.") from None


def optimizer_of(primary_lr, model_update_conf, loss_scale_factor=None):
    """The optimizer of config.train.primary_lr(...) and config.train.model_update_conf(...)."""
    conf = dict(model_update_conf)
    warm, decay, clip = (conf.pop(k, None) for k in ("warmup_conf", "learning_rate_decay", "clip_conf"))
    options = {}
    if warm:
        kind, make, given = _one(warm, _WARMUPS, "warmup_conf")
        options["warmup"] = _made(kind, make, **given)
    if decay:
        kind, make, given = _one(decay, _DECAYS, "learning_rate_decay")
        lr = _made(kind, make, primary_lr, **given, **options)
    else:
        lr = _schedulers.PiecewiseConstantScheduler([], [primary_lr], **options)
    clipping = None
    if clip:
        _, make, given = _one(clip, {"clip_by_global_norm": (_optimizer.grad_clipping.by_global_norm, {})}, "clip_conf")
        clipping = _made("clip_by_global_norm", make, **given)
    kind, make, given = _one(conf, _RULES, "model_update_conf")
    return _made(kind, make, lr, **given, loss_scale_factor=loss_scale_factor, grad_clipping=clipping)
