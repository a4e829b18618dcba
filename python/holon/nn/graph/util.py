"""Where OneFlow has ArgsTree and NamedArg."""

from .proxy import ArgsTree, NamedArg

__all__ = ["ArgsTree", "NamedArg"]
