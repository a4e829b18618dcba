"""Regularizers: what is added to a variable's gradient, after it has been averaged and before it is clipped."""

from holon import _C

__all__ = ["l1", "l1_l2", "l2"]


class Regularizer:
    """Adds l1 * sign(w) + l2 * w to the gradient of w. The loss that a job returns does not show it."""

    def __init__(self, l1, l2):
        for name, value in (("l1", l1), ("l2", l2)):
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"regularizers: {name} is {value!r}; it must be a number.")
        self.l1, self.l2 = float(l1), float(l2)

    def gradient(self, w):
        """What w's gradient is to be increased by."""
        parts = [w * self.l2] if self.l2 else []
        if self.l1:
            parts.append(_C.ops["sign"](w) * self.l1)
        return sum(parts[1:], parts[0]) if parts else _C.ops["zeros_like"](w)

    def __repr__(self):
        return f"regularizers.l1_l2(l1={self.l1}, l2={self.l2})"


def l1_l2(l1=0.01, l2=0.01):
    """The gradient grows by l1 * sign(w) + l2 * w."""
    return Regularizer(l1, l2)


def l1(l=0.01):  # noqa: E741
    """The gradient grows by l * sign(w)."""
    return Regularizer(l, 0.0)


def l2(l=0.01):  # noqa: E741
    """The gradient grows by l * w."""
    return Regularizer(0.0, l)
