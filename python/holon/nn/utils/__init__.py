"""Helpers around a model's parameters, and sequences of unlike lengths (rnn)."""
from . import rnn
from .clip_grad import clip_grad_norm_
from .convert import parameters_to_vector, skip_init, vector_to_parameters

__all__ = ["clip_grad_norm_", "parameters_to_vector", "rnn", "skip_init", "vector_to_parameters"]
