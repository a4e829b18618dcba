"""Schedules of pipelines: which are there, their tables, and how a program adds one."""

from . import _C
from ._C import Schedule

__all__ = ["Schedule", "bubble", "make_schedule", "register_schedule", "schedules", "unregister_schedule"]


def register_schedule(name, function, *, splits_backward=False, doc="", bubble=None):
    """Adds a schedule: `config.pipeline(schedule=name)` uses it from here on. All ranks must register the same.

    function(devices, micro_batches, training) returns a list for each device: its tasks, in the order in which it runs
    them, as tuples (stage, micro_batch, "F"), for a forward, "B" for a backward and, with splits_backward, "W" for the
    gradients of the weights, which "B" then leaves out. devices: the device of each stage. A micro-batch's forwards
    and backwards are in the order of the stages, and each stage runs them in the order of the micro-batches. The
    function must return the same on every rank; its lists are checked before anything runs.

    doc: one line, for schedules(). bubble(devices, micro_batches, chunks_per_device, forward, backward, weight): the
    idle share of all devices' time, for bubble().

    A name that is taken is a ValueError: unregister_schedule(name) frees it.
    """
    _C.register_schedule(name, function, splits_backward, doc, bubble)


def unregister_schedule(name):
    """Removes a schedule. Graphs that are compiled keep it."""
    _C.unregister_schedule(name)


def schedules():
    """The names of all schedules, with what each does."""
    return _C.schedules()


def make_schedule(name, devices, micro_batches, *, training=True):
    """The table of a schedule for stages on these devices: a Schedule, which prints and draws itself."""
    return _C.make_schedule(name, list(devices), micro_batches, training)


def bubble(name, devices, micro_batches, chunks_per_device=1, *, forward=1, backward=1, weight=1):
    """The idle share by the schedule's formula, for stages of equal work on so many devices.
    forward, backward, weight: what F, B and W of a stage take. A ValueError where there is no formula."""
    return _C.bubble_formula(name, devices, micro_batches, chunks_per_device, forward, backward, weight)
