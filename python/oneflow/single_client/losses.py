"""Losses of the older API: those that give one loss a sample, and those that are reduced."""

from holon import _C

from .record import op

_ops = _C.ops


def _rows(labels, scores, what):
    """The labels [n] or [n, 1] as one for each row of scores."""
    if labels.dtype.is_floating_point or labels.dtype == _C.bool:
        raise TypeError(f"{what}: labels are {labels.dtype}; they must be classes, as ints.")
    rows = list(scores.shape[:-1])
    if scores.ndim < 2 or list(labels.shape) not in (rows, [*rows, 1]):
        raise ValueError(
            f"{what}: labels {list(labels.shape)} do not fit the scores {list(scores.shape)}: "
            f"give one class for each of {rows}."
        )
    labels = labels if labels.dtype in (_C.int32, _C.int64) else labels.to(_C.int32)
    if labels.is_global and scores.is_global and len(labels.sbp) == len(scores.sbp):
        # Ranks that have some classes of all rows read the class of each row.
        classes = scores.ndim - 1
        sbp = [_C.sbp.broadcast if s.dim == classes else label for label, s in zip(labels.sbp, scores.sbp)]
        labels = labels.to_global(labels.placement, sbp)
    return labels if labels.ndim == len(rows) else labels.reshape(rows)


@op
def sparse_softmax_cross_entropy_with_logits(labels, logits):
    """Minus the log probability that softmax(logits) gives to each sample's class: [n], not reduced.
    logits may be split by class."""
    return _ops["sparse_softmax_cross_entropy"](
        logits, _rows(labels, logits, "sparse_softmax_cross_entropy_with_logits")
    )


@op
def sparse_cross_entropy(labels, prediction):
    """Minus the logarithm of the probability that prediction has for each sample's class: [n], not reduced."""
    rows = _rows(labels, prediction, "sparse_cross_entropy").to(_C.int64)
    return -_ops["log"](_ops["gather"](prediction, prediction.ndim - 1, rows.unsqueeze(-1)).squeeze(-1))


@op
def softmax_cross_entropy_with_logits(labels, logits):
    """Minus the sum of labels * log softmax(logits) over the classes: [n], not reduced."""
    _alike("softmax_cross_entropy_with_logits", labels=labels, logits=logits)
    return -_ops["sum"](labels * _ops["log_softmax"](logits, -1), [-1])


@op
def sigmoid_cross_entropy_with_logits(labels, logits):
    """The cross entropy of labels and sigmoid(logits), element by element."""
    _alike("sigmoid_cross_entropy_with_logits", labels=labels, logits=logits)
    return _ops["binary_cross_entropy_with_logits"](logits, labels.to(logits.dtype), reduction="none")


def _alike(what, **blobs):
    (a, x), (b, y) = blobs.items()
    if x.shape != y.shape:
        raise ValueError(f"{what}: {a} is {list(x.shape)}, {b} {list(y.shape)}. Their shapes must be equal.")


def _reduction(reduction, what):
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{what}: reduction is {reduction!r}; it must be 'none', 'mean' or 'sum'.")
    return reduction


@op
def MSELoss(input, target, reduction="mean"):
    """(input - target) squared."""
    _alike("MSELoss", input=input, target=target)
    return _ops["mse_loss"](input, target, reduction=_reduction(reduction, "MSELoss"))


@op
def L1Loss(input, target, reduction="mean"):
    """|input - target|."""
    _alike("L1Loss", input=input, target=target)
    return _ops["l1_loss"](input, target, reduction=_reduction(reduction, "L1Loss"))


@op
def BCELoss(input, target, weight=None, reduction="mean"):
    """The cross entropy of target and input, a probability, element by element."""
    _alike("BCELoss", input=input, target=target)
    return _ops["binary_cross_entropy"](input, target, weight, reduction=_reduction(reduction, "BCELoss"))


@op
def BCEWithLogitsLoss(input, target, weight=None, pos_weight=None, reduction="mean"):
    """BCELoss of sigmoid(input)."""
    _alike("BCEWithLogitsLoss", input=input, target=target)
    return _ops["binary_cross_entropy_with_logits"](
        input, target, weight, pos_weight, reduction=_reduction(reduction, "BCEWithLogitsLoss")
    )


@op
def KLDivLoss(input, target, log_target=False, reduction="mean"):
    """The divergence of target from exp(input), element by element; log_target: target is a logarithm too."""
    _alike("KLDivLoss", input=input, target=target)
    return _ops["kl_div"](input, target, reduction=_reduction(reduction, "KLDivLoss"), log_target=log_target)


@op
def MarginRankingLoss(input1, input2, target, margin=0.0, reduction="mean"):
    """max(0, margin - target (input1 - input2)); target is 1 where input1 should be larger, else -1."""
    _alike("MarginRankingLoss", input1=input1, input2=input2)
    return _ops["margin_ranking_loss"](
        input1, input2, target, margin=margin, reduction=_reduction(reduction, "MarginRankingLoss")
    )


@op
def TripletMarginLoss(anchor, positive, negative, margin=1.0, p=2.0, eps=1e-6, swap=False, reduction="mean"):
    """How much nearer than margin negative is to anchor than positive;
    swap: its distance from positive counts if that is less."""
    _alike("TripletMarginLoss", anchor=anchor, positive=positive)
    _alike("TripletMarginLoss", anchor=anchor, negative=negative)
    return _ops["triplet_margin_loss"](
        anchor,
        positive,
        negative,
        margin=margin,
        p=p,
        eps=eps,
        swap=swap,
        reduction=_reduction(reduction, "TripletMarginLoss"),
    )


def add_loss(loss):
    """Makes the job a step of training on this loss, by the optimizer that function_config.train describes."""
    from . import job

    job.current("losses.add_loss").add_loss(loss)


__all__ = sorted(name for name, value in globals().items() if hasattr(value, "fn") and name[0] != "_")
