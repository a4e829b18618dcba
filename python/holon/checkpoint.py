"""Checkpoints of a training run: a folder for each step, with all that the training needs to go on."""

import os
import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple

from . import _C
from ._checkpoint import load, save

__all__ = ["Checkpointer", "Restored", "load", "save", "verify"]


class Restored(NamedTuple):
    """What Checkpointer.restore() returns: the step, and what save() got in addition by name."""

    step: int
    extra: dict[str, Any]


class Checkpointer:
    """Saves and restores a training run: checkpoints in a folder, "step-00000100" and so on.

    model, optimizer, scheduler, scaler, loader: objects with state_dict() and load_state_dict(), such as modules,
    optimizers, graphs, learning-rate schedules, GradScaler and DataLoader; others by any name (ema=...). A checkpoint
    also has each rank's random state. Global tensors, such as the states of an optimizer that are split between ranks,
    are written by all ranks, each element once, and may be restored under another layout or number of ranks. The state
    of loaders is each rank's own; of all else that is not global, rank 0's counts.

    keep: so many checkpoints stay, those of the highest steps; None: all. asynchronous: save() returns when the state
    has been copied in memory, and a thread writes it. while_saving: what save() does while the last one is being
    written, "wait" or "skip".

    A checkpoint is there when it is complete: a program that is killed or a full disk never leaves half of one, or
    costs an older one. The constructor removes what such saves have left. Collective: all ranks make it, and call
    save() and restore(). `with` waits at the end for the save that is under way.
    """

    def __init__(
        self,
        folder,
        keep=3,
        *,
        model=None,
        optimizer=None,
        scheduler=None,
        scaler=None,
        loader=None,
        asynchronous=False,
        while_saving="wait",
        **more,
    ):
        if while_saving not in ("wait", "skip"):
            raise ValueError(f'Checkpointer: while_saving is {while_saving!r}; it must be "wait" or "skip".')
        named = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler, "loader": loader}
        self._objects = {name: obj for name, obj in {**named, **more}.items() if obj is not None}
        for name, obj in self._objects.items():
            if name == "extra":
                raise ValueError("Checkpointer: the name 'extra' is taken. Give the object another.")
            for method in ("state_dict", "load_state_dict"):
                if not callable(getattr(obj, method, None)):
                    raise TypeError(f"Checkpointer: {name} is a {type(obj).__name__}, which has no {method}().")
        self._core = _C.Checkpointer(os.fspath(folder), keep, bool(asynchronous), while_saving == "skip")
        # What is under way when the program ends is written.
        self._at_exit = weakref.finalize(self, self._core.wait)

    def save(self, step, /, **extra):
        """Saves a checkpoint; extra: numbers, strings, tensors and nested values of these, which restore() returns.
        Returns whether it did: False where one was under way and while_saving is "skip".

        Errors, on all ranks: RuntimeError, naming the file, if a rank cannot write, or if the last asynchronous save
        has failed, of which the message says the step; then nothing new is saved, and older checkpoints are there.
        """
        common, own = {}, {}
        for name, obj in self._objects.items():
            (own if _is_loader(obj) else common)[name] = obj.state_dict()
        return self._core.save(step, {**common, "extra": extra}, own)

    def restore(self, step=None, *, strict=True):
        """Loads the checkpoint of a step, or the latest, into the objects, and sets the random state: training goes on
        as if it had not been interrupted. Returns (step, extra), or None where there is no checkpoint. After a step
        that is not the latest, the next save() renames the later ones ("abandoned-step-00000200"), so that they are
        neither the latest nor counted by keep.

        Errors: there is no checkpoint of the step; it is damaged, which names the file; it lacks one of the objects, or
        has one more (if strict); those of load_state_dict().
        """
        found = self._core.load(step, None, None, None)
        if found is None:
            return None
        step, common, own, random = found
        if not isinstance(common, Mapping) or "extra" not in common:
            raise RuntimeError(
                f"Checkpointer: {self.path(step)} was not saved by Checkpointer.save(). Load it with holon.load()."
            )
        extra = common.pop("extra")
        states = {**common, **(own or {})}
        differences = [f"no {n}" for n in self._objects if n not in states]
        differences += [f"also {n}" for n in states if n not in self._objects]
        if strict and differences:
            raise ValueError(
                f"Checkpointer: {self.path(step)} does not have the same objects: {', '.join(differences)}. Name the "
                "objects as when it was saved, or pass strict=False."
            )
        for name, obj in self._objects.items():
            if name in states:
                obj.load_state_dict(states[name])
        _C.set_rng_state(random)
        return Restored(step, extra)

    def wait(self):
        """Returns when no save is under way. Errors: RuntimeError if it has failed, raised once."""
        self._core.wait()

    def steps(self):
        """Returns the steps of the complete checkpoints, in order."""
        return self._core.steps()

    def latest(self):
        """Returns the step of the latest complete checkpoint, or None."""
        return max(self._core.steps(), default=None)

    def path(self, step):
        """Returns the folder of a step's checkpoint, which holon.load() reads, too."""
        return self._core.path(step)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.wait()


def _is_loader(obj):
    from .utils.data import DataLoader, Sampler

    return isinstance(obj, (DataLoader, Sampler))


def verify(path):
    """Reads all of a checkpoint, or of any file or folder of save(), and compares its checksums. One rank may call it.

    Returns {"files", "tensors", "bytes", "unchecked_bytes"}, the last of files without checksums, such as those of
    other programs. Errors: RuntimeError, naming the file and the tensors, if anything is missing or damaged.
    """
    return _C.verify_checkpoint(os.fspath(path))


def __getattr__(name):
    from ._missing import error

    raise error("checkpoint", name, __all__)
