"""watch and watch_diff: values of blobs, or their gradients, at each call of the job."""

import inspect

from . import signature
from .blob import Blob

__all__ = ["watch", "watch_diff"]


class _Watch:
    def __init__(self, blob, handler, of_gradient):
        self.blob, self.of_gradient = blob, of_gradient
        self.annotation = inspect.Signature.empty
        if callable(handler):
            parameters = list(inspect.signature(handler, eval_str=True).parameters.values())
            assert len(parameters) == 1, (
                f"watch: the handler takes {len(parameters)} parameters; it must take one, the value."
            )
            a = parameters[0].annotation
            assert a is inspect.Parameter.empty or a in signature.LEAVES, (
                f"watch: the handler's parameter is annotated {a!r}; it must be "
                "tp.Numpy, tp.ListNumpy, tp.ListListNumpy, or nothing."
            )
            self.annotation = inspect.Signature.empty if a is inspect.Parameter.empty else a
            self.handler = handler
        else:
            text = handler if isinstance(handler, str) else f"{blob.op_name}{' (gradient)' if of_gradient else ''}"
            self.handler = lambda value: print(f"{text}\n{value!r}" if text else repr(value))

    def show(self, value):
        self.handler(signature.converted(self.annotation, value))


def _watch(what, blob, handler, of_gradient):
    from . import job

    current = job.current(what)
    assert isinstance(blob, Blob), f"{what}: takes a blob, got {type(blob).__name__}."
    assert handler is None or isinstance(handler, str) or callable(handler), (
        f"{what}: the handler must be a function of the value, or a text to print before it."
    )
    if of_gradient and current.type != "train":
        raise RuntimeError(f"{what}: {current.name} is a predict job, which has no gradients.")
    current.watches.append(_Watch(blob, handler, of_gradient))


def watch(blob, handler_or_prompt=None):
    """At each call of this job handler(value), its parameter annotated tp.Numpy or tp.ListNumpy;
    without a handler the value is printed, after the text."""
    _watch("watch", blob, handler_or_prompt, False)


def watch_diff(blob, handler_or_prompt=None):
    """As watch, of the gradient of the sum of the losses with respect to blob."""
    _watch("watch_diff", blob, handler_or_prompt, True)
