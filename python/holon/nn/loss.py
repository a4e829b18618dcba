"""Losses: numbers of what a model gave and what was wanted, averaged ("mean"), added up ("sum") or each ("none")."""

from . import functional as F
from .options import FunctionModule


class _Loss(FunctionModule):
    _shown = ()


class L1Loss(_Loss):
    """The absolute difference."""

    _function, _options = "l1_loss", {"reduction": "mean"}


class MSELoss(_Loss):
    """The squared difference."""

    _function, _options = "mse_loss", {"reduction": "mean"}


class SmoothL1Loss(_Loss):
    """The squared difference over 2 beta where the difference is under beta, beyond it the difference less beta / 2."""

    _function, _options = "smooth_l1_loss", {"reduction": "mean", "beta": 1.0}


class HuberLoss(_Loss):
    """Half of the squared difference where the difference is under delta,
    beyond it delta times (difference - delta / 2)."""

    _function, _options = "huber_loss", {"reduction": "mean", "delta": 1.0}


class CrossEntropyLoss(_Loss):
    """Minus the log probability that softmax(input) gives to the classes of target.
    weight: one number for each class."""

    _function = "cross_entropy"
    _options = {"weight": None, "ignore_index": -100, "reduction": "mean", "label_smoothing": 0.0}


class NLLLoss(_Loss):
    """Minus the log probability, given as input, of the classes of target."""

    _function, _options = "nll_loss", {"weight": None, "ignore_index": -100, "reduction": "mean"}


class KLDivLoss(_Loss):
    """target * (log(target) - input), input being log probabilities; so is target if log_target."""

    _function, _options = "kl_div", {"reduction": "mean", "log_target": False}


class BCELoss(_Loss):
    """Minus the log probability of target, 0 to 1, where input is the probability of 1."""

    _function, _options = "binary_cross_entropy", {"weight": None, "reduction": "mean"}


class BCEWithLogitsLoss(_Loss):
    """BCELoss of sigmoid(input), without its overflow. pos_weight: the weight of ones, for each class."""

    _function = "binary_cross_entropy_with_logits"
    _options = {"weight": None, "reduction": "mean", "pos_weight": None}


class SoftMarginLoss(_Loss):
    """log(1 + exp(-target * input)), target being -1 or 1."""

    _function, _options = "soft_margin_loss", {"reduction": "mean"}


class HingeEmbeddingLoss(_Loss):
    """input where target is 1, max(0, margin - input) where it is -1."""

    _function, _options = "hinge_embedding_loss", {"margin": 1.0, "reduction": "mean"}


class MarginRankingLoss(_Loss):
    """max(0, -target * (input1 - input2) + margin)."""

    _function, _options = "margin_ranking_loss", {"margin": 0.0, "reduction": "mean"}


class PoissonNLLLoss(_Loss):
    """exp(input) - target * input, input being the logarithms of rates; or of rates themselves unless log_input.
    full: with Stirling's approximation of what depends on target only."""

    _function = "poisson_nll_loss"
    _options = {"log_input": True, "full": False, "eps": 1e-8, "reduction": "mean"}


class GaussianNLLLoss(_Loss):
    """(log(var) + (input - target) ** 2 / var) / 2, var being at least eps. full: plus log(2 * pi) / 2."""

    _function = "gaussian_nll_loss"

    def __init__(self, *, full=False, eps=1e-6, reduction="mean"):
        super().__init__()
        self.full, self.eps, self.reduction = full, eps, reduction

    def forward(self, input, target, var):
        return F.gaussian_nll_loss(input, target, var, full=self.full, eps=self.eps, reduction=self.reduction)


class MultiMarginLoss(_Loss):
    """The mean over the classes of max(0, margin - score of the target + another's) ** p, p being 1 or 2."""

    _function = "multi_margin_loss"
    _options = {"p": 1, "margin": 1.0, "weight": None, "reduction": "mean"}


class MultiLabelMarginLoss(_Loss):
    """max(0, 1 - score of a target + another's), of several targets in a row up to the first negative one."""

    _function, _options = "multilabel_margin_loss", {"reduction": "mean"}


class MultiLabelSoftMarginLoss(_Loss):
    """The mean over the classes of the binary cross-entropy of sigmoid(input)."""

    _function, _options = "multilabel_soft_margin_loss", {"weight": None, "reduction": "mean"}


class CTCLoss(_Loss):
    """Minus the log probability of labels, summed over all alignments with the steps of log_probs."""

    _function, _options = "ctc_loss", {"blank": 0, "reduction": "mean", "zero_infinity": False}

    def forward(self, log_probs, targets, input_lengths, target_lengths):
        return F.ctc_loss(
            log_probs, targets, input_lengths, target_lengths, self.blank, self.reduction, self.zero_infinity
        )


class CosineEmbeddingLoss(_Loss):
    """1 - cosine of two rows where target is 1, max(0, cosine - margin) where it is -1."""

    _function, _options = "cosine_embedding_loss", {"margin": 0.0, "reduction": "mean"}


class TripletMarginLoss(_Loss):
    """max(0, distance of anchor and positive - distance of anchor and negative + margin)."""

    _function = "triplet_margin_loss"
    _options = {"margin": 1.0, "p": 2.0, "eps": 1e-6, "swap": False, "reduction": "mean"}
