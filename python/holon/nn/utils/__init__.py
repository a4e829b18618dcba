"""Helpers around a model's parameters, and sequences of unlike lengths (rnn)."""

from . import rnn
from .clip_grad import clip_grad_norm_, clip_grad_value_
from .convert import parameters_to_vector, skip_init, vector_to_parameters
from .lora import Lora
from .weight_norm import remove_weight_norm, weight_norm

__all__ = [
    "Lora",
    "clip_grad_norm_",
    "clip_grad_value_",
    "parameters_to_vector",
    "remove_weight_norm",
    "rnn",
    "skip_init",
    "vector_to_parameters",
    "weight_norm",
]
