"""Distances between rows."""

from .options import FunctionModule


class CosineSimilarity(FunctionModule):
    """The cosine of the angle between two rows along dim."""

    _function, _options, _shown = "cosine_similarity", {"dim": 1, "eps": 1e-8}, ()


class PairwiseDistance(FunctionModule):
    """The p-norm of the difference of two rows, the last axis."""

    _function, _options, _shown = "pairwise_distance", {"p": 2.0, "eps": 1e-6, "keepdim": False}, ()
