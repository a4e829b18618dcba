"""Losses."""

import numpy as np
from op_table import a, i, row, wrong

p = a(5, 3, low=0.05, high=0.95)
sign = np.where(a(5, 3) > 0, 1.0, -1.0)
REDUCTIONS = {"mean": np.mean, "sum": np.sum, "none": lambda x: x}


def softplus(x):
    return np.logaddexp(x, 0)


def huber(d, delta):
    return np.where(np.abs(d) <= delta, d * d / 2, delta * (np.abs(d) - delta / 2))


def bce(x, t):
    with np.errstate(all="ignore"):
        return -(t * np.maximum(np.log(x), -100) + (1 - t) * np.maximum(np.log1p(-x), -100))


def logit_loss(x, t, w=1.0, positive=1.0):
    return w * ((1 - t) * x + (1 + (positive - 1) * t) * softplus(-x))


PLAIN = {
    "mse_loss": lambda x, y: (x - y) ** 2,
    "l1_loss": lambda x, y: np.abs(x - y),
    "smooth_l1_loss": lambda x, y, beta=1.0: huber(x - y, beta) / beta if beta else np.abs(x - y),
    "huber_loss": lambda x, y, delta=1.0: huber(x - y, delta),
}
for op, function in PLAIN.items():
    for reduction, reduce in REDUCTIONS.items():
        row(
            op,
            lambda x, y, reduction, f=function, r=reduce: r(f(x, y)),
            a(5, 3),
            a(5, 3)[::-1].copy(),
            reduction=reduction,
        )
    row(op, lambda x, y, f=function: f(x, y).mean(), a(5, 3), a(5, 3)[::-1].copy(), dtypes=("float16",), rtol=1e-2)
    wrong(op, a(3), a(4), error=ValueError, says=r"\[3\].*\[4\]")
    wrong(op, a(3), a(3), reduction="max", error=ValueError, says="'mean', 'sum' or 'none'")
for beta in (0.0, 0.5):
    row(
        "smooth_l1_loss",
        lambda x, y, beta, f=PLAIN["smooth_l1_loss"]: f(x, y, beta).mean(),
        a(5, 3),
        a(5, 3)[::-1].copy(),
        beta=beta,
    )
row("huber_loss", lambda x, y, delta: huber(x - y, delta).mean(), a(5, 3), a(5, 3)[::-1].copy(), delta=0.5)
wrong("huber_loss", a(3), a(3), delta=0.0, error=ValueError, says="positive")
wrong("smooth_l1_loss", a(3), a(3), beta=-1.0, error=ValueError, says="negative")

REDUCED = {**REDUCTIONS, "batchmean": lambda x: x.sum() / len(x)}
for reduction, reduce in REDUCED.items():
    row("kl_div", lambda x, t, reduction, r=reduce: r(t * (np.log(t) - x)), a(5, 3), p, reduction=reduction)
    row(
        "kl_div",
        lambda x, t, reduction, log_target, r=reduce: r(np.exp(t) * (t - x)),
        a(5, 3),
        a(5, 3)[::-1].copy(),
        reduction=reduction,
        log_target=True,
    )
row("kl_div", lambda x, t: 0.0 * x.mean(), a(4), np.zeros(4))
for reduction, reduce in REDUCTIONS.items():
    row("binary_cross_entropy", lambda x, t, reduction, r=reduce: r(bce(x, t)), p, p[::-1].copy(), reduction=reduction)
    row(
        "binary_cross_entropy_with_logits",
        lambda x, t, reduction, r=reduce: r(logit_loss(x, t)),
        a(5, 3),
        p,
        reduction=reduction,
    )
    row("soft_margin_loss", lambda x, t, reduction, r=reduce: r(softplus(-t * x)), a(5, 3), sign, reduction=reduction)
    row(
        "hinge_embedding_loss",
        lambda x, t, reduction, margin, r=reduce: r(np.where(t == 1, x, np.maximum(0, margin - x))),
        a(5, 3),
        sign,
        reduction=reduction,
        margin=0.5,
    )
    row(
        "margin_ranking_loss",
        lambda x, y, t, reduction, margin, r=reduce: r(np.maximum(0, -t * (x - y) + margin)),
        a(5, 3),
        a(5, 3)[::-1].copy(),
        sign,
        reduction=reduction,
        margin=0.5,
    )
row("binary_cross_entropy", lambda x, t, weight: (weight * bce(x, t)).mean(), p, p[::-1].copy(), weight=a(3, low=0.5))
row(
    "binary_cross_entropy",
    lambda x, t, reduction: np.array([100.0, 100.0, 0.0]),
    np.array([0.0, 1.0, 1.0]),
    np.array([1.0, 0.0, 1.0]),
    reduction="none",
)
row(
    "binary_cross_entropy_with_logits",
    lambda x, t, weight, pos_weight: logit_loss(x, t, weight, pos_weight).mean(),
    a(5, 3),
    p,
    weight=a(5, 1, low=0.5),
    pos_weight=a(3, low=0.5),
)
row(
    "binary_cross_entropy_with_logits",
    lambda x, t, reduction: np.array([0.0, 1e4, 0.0]),
    np.array([1e4, 1e4, -1e4]),
    np.array([1.0, 0.0, 0.0]),
    reduction="none",
)
wrong("binary_cross_entropy", p, a(5), error=ValueError, says=r"\[5, 3\].*\[5\]")
wrong("binary_cross_entropy_with_logits", p, a(5), error=ValueError, says=r"\[5, 3\].*\[5\]")
wrong("kl_div", a(3), a(3), reduction="max", error=ValueError, says="reduction")


def cosine(x, y, axis=1, eps=1e-8):
    length = lambda v: np.maximum(np.sqrt((v * v).sum(axis)), eps)
    x, y = np.broadcast_arrays(x, y)
    return (x * y).sum(axis) / (length(x) * length(y))


row("cosine_similarity", cosine, a(5, 3), a(5, 3)[::-1].copy())
row("cosine_similarity", cosine, a(5, 3, 2), a(3, 2), 0)
row("cosine_similarity", cosine, a(5, 3), a(3), -1)
row("cosine_similarity", lambda x, y, d: np.zeros(2), np.zeros((2, 3)), np.zeros((2, 3)), 1)
wrong("cosine_similarity", a(3), a(3), 1, error=IndexError, says="axis|dim")
wrong("cosine_similarity", i(3), i(3), 0, error=TypeError, says="floating point")
label = np.array([1, -1, 1, -1, 1])
for margin in (0.0, 0.3):
    row(
        "cosine_embedding_loss",
        lambda x, y, t, margin: np.where(t == 1, 1 - cosine(x, y), np.maximum(0, cosine(x, y) - margin)).mean(),
        a(5, 3),
        a(5, 3)[::-1].copy(),
        label,
        margin=margin,
    )
wrong("cosine_embedding_loss", a(5, 3), a(5, 3), a(5, 3), error=ValueError, says="do not fit")


def triplet(x, y, z, margin=1.0, order=2.0, swap=False):
    distance = lambda a, b: (np.abs(a - b + 1e-6) ** order).sum(-1) ** (1 / order)
    far = distance(x, z)
    return np.maximum(0, distance(x, y) - (np.minimum(far, distance(y, z)) if swap else far) + margin)


three = a(5, 3), a(5, 3)[::-1].copy(), a(5, 3)[:, ::-1].copy()
row("triplet_margin_loss", lambda x, y, z: triplet(x, y, z).mean(), *three)
for p_ in (1.0, 3.0):
    row(
        "triplet_margin_loss",
        lambda x, y, z, p, swap, reduction: triplet(x, y, z, 1.0, p, True),
        *three,
        p=p_,
        swap=True,
        reduction="none",
    )
wrong("triplet_margin_loss", *three, p=0.0, error=ValueError, says="positive")
wrong("hinge_embedding_loss", a(3), a(4), error=ValueError, says=r"\[3\].*\[4\]|\[4\].*\[3\]")
wrong("margin_ranking_loss", a(3), a(3), a(3), reduction="x", error=ValueError, says="reduction")
wrong("soft_margin_loss", a(3), a(4), error=ValueError, says=r"\[3\].*\[4\]")


def log_softmax(x, axis):
    x = x - x.max(axis, keepdims=True)
    return x - np.log(np.exp(x).sum(axis, keepdims=True))


def nll(logp, target, weight=None, ignore_index=-100, reduction="mean"):
    axis = 0 if logp.ndim == 1 else 1
    logp = np.moveaxis(logp, axis, -1)
    kept = target != ignore_index
    safe = np.where(kept, target, 0)
    w = (np.ones(logp.shape[-1]) if weight is None else weight)[safe] * kept
    loss = -np.take_along_axis(logp, safe[..., None], -1)[..., 0] * w
    return loss.sum() / w.sum() if reduction == "mean" else REDUCTIONS[reduction](loss)


def cross_entropy(x, target, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0):
    axis = 0 if x.ndim == 1 else 1
    logp, s, classes = log_softmax(x, axis), label_smoothing, x.shape[axis]
    shape = [1] * x.ndim
    shape[axis] = classes
    w = np.ones(shape) if weight is None else weight.reshape(shape)
    if np.issubdtype(target.dtype, np.floating):
        loss = -((target * (1 - s) + s / classes) * logp * w).sum(axis)
        return REDUCTIONS[reduction](loss)
    kept = target != ignore_index
    plain = nll(logp, target, weight, ignore_index, "none")
    even = -(logp * w).sum(axis) * kept
    loss = (1 - s) * plain + s / classes * even
    if reduction != "mean":
        return REDUCTIONS[reduction](loss)
    return loss.sum() / (w.ravel()[np.where(kept, target, 0)] * kept).sum()


CASES = [((5, 3), (5,)), ((3,), ()), ((2, 3, 4), (2, 4)), ((2, 3, 4, 2), (2, 4, 2))]
for shape, target in CASES:
    for reduction in REDUCTIONS:
        row("cross_entropy", cross_entropy, a(*shape), i(*target, high=3), reduction=reduction)
        row("nll_loss", nll, a(*shape), i(*target, high=3), reduction=reduction)
        if target:
            row("nll_loss", nll, a(*shape), i(*target, high=3), a(3, low=0.5), ignore_index=1, reduction=reduction)
            row(
                "cross_entropy",
                cross_entropy,
                a(*shape),
                i(*target, high=3),
                a(3, low=0.5),
                ignore_index=1,
                reduction=reduction,
                label_smoothing=0.2,
            )
            row(
                "cross_entropy",
                cross_entropy,
                a(*shape),
                i(*target, high=3),
                ignore_index=1,
                reduction=reduction,
                label_smoothing=0.2,
            )
    # The mean over probabilities divides by the rows.
    row("cross_entropy", cross_entropy, a(*shape), a(*shape, low=0, high=1), label_smoothing=0.1)
    row("cross_entropy", cross_entropy, a(*shape), a(*shape, low=0, high=1), weight=a(3, low=0.5), reduction="sum")
row("cross_entropy", cross_entropy, a(5, 3), i(5, high=3, dtype="int32"))
row("cross_entropy", cross_entropy, a(5, 3), i(5, high=3), dtypes=("float16", "bfloat16"), rtol=2e-2)
row("cross_entropy", lambda x, t: np.nan, a(2, 3), np.array([-100, -100]))
row("cross_entropy", lambda x, t, reduction: np.zeros(2), a(2, 3), np.array([-100, -100]), reduction="none")
row(
    "sparse_softmax_cross_entropy",
    lambda x, t: -np.take_along_axis(log_softmax(x, -1), t[..., None], -1)[..., 0],
    a(2, 5, 3),
    i(2, 5, high=3),
)
wrong("sparse_softmax_cross_entropy", a(5, 3), i(4, high=3), error=ValueError, says=r"\[5\].*\[4\]")
for op in ("cross_entropy", "nll_loss"):
    wrong(op, a(5, 3), i(4, high=3), error=ValueError, says=r"\[5\].*\[4\]")
    wrong(op, a(5, 3), np.array([0, 1, 2, 3, 0]), error=IndexError, says=r"3.*outside")
    wrong(op, a(5, 3), np.array([0, 1, 2, -1, 0]), error=IndexError, says=r"-1.*outside")
    wrong(op, a(5, 3), i(5, high=2, dtype="int8"), error=TypeError, says="int64 or int32")
    wrong(op, i(5, 3), i(5, high=2), error=TypeError, says="floating point")
    wrong(op, a(5, 3), i(5, high=2), a(4), error=ValueError, says="3 classes")
    wrong(op, a(5, 3), i(5, high=2), reduction="max", error=ValueError, says="reduction")
wrong("cross_entropy", a(5, 3), a(5, 4), error=ValueError, says="probabilities")
wrong("cross_entropy", a(5, 3), i(5, high=2), label_smoothing=2.0, error=ValueError, says="from 0 to 1")
