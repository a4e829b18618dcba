"""Boxing, redistribution between specs: what it would do, and what ops may do implicitly."""

from .. import _C

__all__ = ["boxing_policy", "contract", "counters", "events", "explain", "parameter_policy"]

boxing_policy = _C.boxing_policy
parameter_policy = _C.parameter_policy
contract = _C.contract


class Explanation(str):
    """explain's text. A notebook shows it with pictures of who holds what before and after each step."""

    _plan: _C.Plan

    def __repr__(self):
        return str(self)

    def __reduce__(self):
        return str, (str(self),)

    def _repr_html_(self):
        from .._notebook import explanation_html

        return explanation_html(self, self._plan)


def explain(x, placement=None, sbp=None):
    """Returns the steps that x.to_global(placement, sbp) takes, with bytes per rank and per link, memory and predicted
    time, as a text that draws itself in notebooks. Moves no data."""
    text, plan = _C.explanation(x, placement, sbp)
    explanation = Explanation(text)
    explanation._plan = plan
    return explanation


def counters():
    """Returns how often ops have moved data implicitly on this rank, and how many bytes: events, moves, bytes,
    and parameters, the moves of parameters."""
    return _C.boxing_counters()


def events():
    """Returns the last such moves on this rank, oldest first: op, from, to, shape, dtype, bytes, parameter, inside (the
    op's kernel reads other ranks' parts itself, which no policy refuses), line."""
    return _C.boxing_events()


def __getattr__(name):
    from .._missing import error

    raise error("boxing", name, __all__)
