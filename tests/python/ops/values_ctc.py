"""CTC, by counting: the probabilities of all paths that collapse to the labels, added up."""

import itertools

import numpy as np
from op_table import a, row, wrong


def collapsed(path, blank):
    return [c for c, _ in itertools.groupby(path) if c != blank]


def ctc(log_probs, targets, input_lengths, target_lengths, blank=0, reduction="mean", zero_infinity=False):
    p = np.exp(np.asarray(log_probs, np.float64))
    single = p.ndim == 2
    if single:
        p, targets = p[:, None], np.asarray(targets)[None]
    steps, lengths = np.reshape(input_lengths, -1), np.reshape(target_lengths, -1)
    if targets.ndim == 1:
        targets = np.split(targets, np.cumsum(lengths)[:-1])
    losses = []
    for n, (t, s) in enumerate(zip(steps, lengths)):
        wanted, total = list(targets[n][:s]), 0.0
        for path in itertools.product(range(p.shape[2]), repeat=int(t)):
            if collapsed(path, blank) == wanted:
                total += np.prod([p[k, n, c] for k, c in enumerate(path)])
        losses.append(-np.log(total) if total else np.inf)
    losses = np.array(losses)
    if zero_infinity:
        losses[np.isinf(losses)] = 0
    if reduction == "mean":
        return (losses / np.maximum(lengths, 1)).mean()
    return losses.sum() if reduction == "sum" else losses[0] if single else losses


def log_softmax(x):
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


log_probs = log_softmax(a(5, 3, 4))
rows = np.array([[1, 2, 2], [3, 3, 0], [2, 0, 0]])
steps, lengths = np.array([5, 4, 3]), np.array([3, 2, 0])
for reduction in ("mean", "sum", "none"):
    row("ctc_loss", ctc, log_probs, rows, steps, lengths, reduction=reduction)
row("ctc_loss", ctc, log_probs, rows.astype(np.int32), steps.astype(np.int32), lengths.astype(np.int32))
row("ctc_loss", ctc, log_probs, np.array([1, 2, 2, 3, 3]), steps, lengths, reduction="none")
row("ctc_loss", ctc, log_probs, np.array([[1, 0], [2, 2], [0, 1]]), steps, np.array([2, 2, 1]), 3)
# Three labels do not fit two steps, and a label twice needs a blank between.
for zero in (False, True):
    row("ctc_loss", ctc, log_probs, rows, np.array([2, 2, 5]), lengths, reduction="none", zero_infinity=zero)
row("ctc_loss", ctc, log_probs, rows, np.array([0, 4, 0]), lengths, reduction="none", zero_infinity=True)
row("ctc_loss", ctc, log_probs[:, 0], rows[0], np.array(5), np.array(3))
row("ctc_loss", ctc, log_probs, rows, steps, lengths, dtypes=("float16",), rtol=1e-2)

wrong("ctc_loss", log_probs, rows, np.array([6, 4, 3]), lengths, error=ValueError, says=r"input length 6 .*\[0, 5\]")
wrong("ctc_loss", log_probs, rows, np.array([-1, 4, 3]), lengths, error=ValueError, says="input length -1")
wrong("ctc_loss", log_probs, rows, steps, np.array([4, 2, 0]), error=ValueError, says=r"target length 4 .*\[0, 3\]")
wrong(
    "ctc_loss",
    log_probs,
    rows + 2,
    steps,
    lengths,
    error=IndexError,
    says=r"label 1 of sample 0 is 4, outside \[0, 4\)",
)
wrong("ctc_loss", log_probs, rows, steps, lengths, 4, error=ValueError, says="blank is 4.*4 classes")
wrong("ctc_loss", log_probs, rows[:2], steps, lengths, error=ValueError, says=r"targets is \[2, 3\].*3 samples")
wrong("ctc_loss", log_probs, rows, steps[:2], lengths, error=ValueError, says=r"input_lengths is \[2\]")
wrong("ctc_loss", log_probs, np.array([1, 2]), steps, lengths, error=ValueError, says="2 labels.*add up to 5")
wrong("ctc_loss", log_probs, a(3, 3), steps, lengths, error=TypeError, says="int64 or int32")
wrong("ctc_loss", rows, rows, steps, lengths, error=TypeError, says="floating")
wrong("ctc_loss", a(3), rows, steps, lengths, error=ValueError, says=r"\[3\]; it takes")
wrong("ctc_loss", log_probs, rows, steps, lengths, reduction="max", error=ValueError, says="'mean', 'sum' or 'none'")
