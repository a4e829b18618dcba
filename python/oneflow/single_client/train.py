"""Checkpoints as training programs use them: train.CheckPoint, train.SimpleCheckPointManager."""

import os
import warnings

from holon import _C

from . import checkpoint

__all__ = ["CheckPoint", "SimpleCheckPointManager"]


class CheckPoint:
    """Saves and loads all variables."""

    def __init__(self):
        pass

    def init(self):
        """Does nothing: variables are initialised when the session starts. Weights that are trained stay."""
        if _C.rank() == 0:
            print("CheckPoint.init() is no longer needed: variables are initialised at the first call of a job.")

    def save(self, path):
        """As checkpoint.save(path)."""
        checkpoint.save(path)

    def load(self, path):
        """As load_variables(checkpoint.get(path)): optimizer states and numbers of calls come back,
        and variables that it lacks keep theirs."""
        checkpoint.load_variables(checkpoint.get(path))


class SimpleCheckPointManager:
    """Checkpoints of one program as numbered folders below root_path."""

    def __init__(self, root_path, prefix="snapshot_"):
        if not root_path:
            root_path = "./output/snapshots/"
            warnings.warn(f"SimpleCheckPointManager: root_path is empty; {root_path} it is.", stacklevel=2)
        self._root, self._prefix = os.fspath(root_path), prefix
        self._checkpoint = CheckPoint()

    def list_checkpoints(self):
        """Their names, the oldest first."""
        if not os.path.isdir(self._root):
            return []
        return sorted(
            d
            for d in os.listdir(self._root)
            if d.startswith(self._prefix) and os.path.isfile(os.path.join(self._root, d, "snapshot_done"))
        )

    def latest_checkpoint(self):
        """The name of the newest, or None."""
        return next(reversed(self.list_checkpoints()), None)

    def initialize_or_restore(self):
        """Loads the newest, where there is one."""
        name = self.latest_checkpoint()
        if name:
            self._checkpoint.load(os.path.join(self._root, name))
        else:
            self._checkpoint.init()

    def save(self):
        """Saves under the next name."""
        self._checkpoint.save(os.path.join(self._root, self._next_name()))

    def _next_name(self):
        return f"{self._prefix}{len(self.list_checkpoints()):08d}"
