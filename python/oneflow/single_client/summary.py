"""Values of job functions as lines of text, call by call, and what a job function consists of.
Event files are not written."""

import math

from .blob import Blob
from .watch import watch

__all__ = ["create_summary_writer", "describe", "flush_summary_writer", "scalar"]


def scalar(value, step=None, tag=None, name=None):
    """At each call of this job prints "tag step value".
    value: a blob of one element; step: another, or None to count the calls."""
    if not isinstance(value, Blob) or math.prod(value.shape) != 1:
        raise ValueError(
            f"summary.scalar: value is {value!r}; it must be a blob of one element, such as math.reduce_mean(loss)."
        )
    if step is not None and (not isinstance(step, Blob) or math.prod(step.shape) != 1):
        raise ValueError(f"summary.scalar: step is {step!r}; it must be a blob of one element, or None.")
    label = tag if isinstance(tag, str) else name or value.op_name
    at = [-1]

    def count(value):
        at[0] = int(value.numpy().item())

    def show(value):
        if step is None:
            at[0] += 1
        print(f"{label} {at[0]} {value.numpy().item():.6g}")

    if step is not None:
        watch(step, count)
    watch(value, show)


def create_summary_writer(logdir, name=None):
    """Says that no files will be written to logdir: summary.scalar prints."""
    print(f"summary: nothing is written to {logdir}; summary.scalar prints its values.")


def flush_summary_writer(name=None):
    """Does nothing: what is printed is there."""


def describe(job_function):
    """Returns a job function as text: its variables with their sizes,
    and its ops in order with the shapes of what they give.

    Starts the session, as a call would.
    """
    from . import session
    from .record import leaves

    job = getattr(job_function, "__holon_job__", None)
    if job is None:
        raise TypeError(
            f"summary.describe: {job_function!r} is not a job function: decorate it with @global_function()."
        )
    session.default().start()
    lines, total = [f"{job.name} ({job.type})"], 0
    for use in job.variables.values():
        d = use.declaration
        n = math.prod(d.shape)
        total += n * d.trainable
        lines.append(f"  variable {d.name}  {list(d.shape)}  {n:,}{'' if d.trainable else '  not trained'}")
    for node in job.nodes:
        shapes = ", ".join(str(list(b.shape)) for b in leaves(node.outputs, Blob))
        lines.append(f"  {node.name}  {shapes}")
    lines.append(f"  {total:,} numbers are trained")
    return "\n".join(lines)


def __getattr__(name):
    raise AttributeError(
        f"summary has no '{name}': event files are not written. "
        f"It has {', '.join(__all__)}; watch(blob, handler) gives you any value."
    )
