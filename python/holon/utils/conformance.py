"""Checks of your own ops and functions: sharding rules, gradients, and global calls against local ones; and of whole
programs: whether they compute the same under every layout."""

from .. import _C
from .._check import check_program

__all__ = ["check_function", "check_op", "check_program"]


def check_op(name, samples=()):
    """Checks an op, such as one of a library that cpp_extension.load has loaded, and returns a report: str(report), and
    report.faults, a list of what is wrong, empty where nothing is.

    For each sample: the kernel on the parts of 2, 3 and 4 ranks gives the parts of the result under each signature of
    the sharding rule, and the rule lacks none for which that holds; the gradient is that of finite differences; and
    calls on global tensors equal those on local ones, gradients included, with inputs in every layout on up to 4 ranks,
    which are threads of this process.

    A sample is a text: "scaled_add [5, 6] [6]; alpha=0.5". For each input there is a shape, as "int64[5, 6]" where it
    is not float32, with a range of values where that matters, "[5, 6](0.5, 2)", or "none". Without samples some are
    drawn from the op's schema. Errors (ValueError): there is no such op; a sample that cannot be read.
    """
    return _C.check_op(name, list(samples))


def check_function(function, inputs):
    """Checks a function of tensors that returns one or several, such as a call of an autograd.Function with a
    sharding_rule, and returns a report as check_op does: of gradients and layouts.

        report = check_function(lambda x, w: MyProduct.apply(x, w), "[4, 5] [5, 3]")

    inputs: the shapes, as in a sample of check_op. The function is called with local and with global tensors, in
    float32 and float64, by several threads.
    """
    return _C.check_function(getattr(function, "__name__", type(function).__name__), inputs, function)
