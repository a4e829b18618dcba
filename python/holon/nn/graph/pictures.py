"""Pictures and tables of what a graph was compiled to."""

from pathlib import Path

from ... import _C


class Pictures:
    """What a Graph can show of itself once it is compiled.
    signature: which of several, in the order of their first calls."""

    def plot(self, path=None, *, signature=-1, most_items=90, fold=True):
        """Writes the plan as an SVG, or returns its text if there is no path: stages as columns, modules as frames
        with forward to the left and backward to the right, boxing in colour with bytes. Modules that are alike are
        drawn once (fold); a column of more than `most_items` shows inner modules as one item each. The same on all
        ranks."""
        at = self._signature("plot", signature)
        return _written(path, self._core.plan_svg(at, type(self).__name__, most_items, bool(fold)))

    def _repr_svg_(self):
        """What a notebook shows: the plan, once there is one."""
        return self.plot() if self._core.n_signatures else None

    def plot_schedule(self, path=None, *, signature=-1):
        """Writes the order of stages and micro-batches as an SVG, with estimated times, or returns its text.
        The same on all ranks."""
        return _written(path, self._core.schedule_svg(self._signature("plot_schedule", signature)))

    def schedule(self, *, signature=-1):
        """The order of stages and micro-batches as text, a line for each device: "0: F0 F1 B0 B1"."""
        return self._core.schedule_text(self._signature("schedule", signature))

    def plot_memory(self, path=None, *, all_ranks=False, signature=-1):
        """Writes this rank's memory over the instructions of a step as an SVG, or returns its text. all_ranks: of all
        ranks; then every rank calls it, and rank 0 writes the file."""
        text = self._core.memory(self._signature("plot_memory", signature), bool(all_ranks), True)
        return text if path is None else _written(path, text, writes=not all_ranks or _C.rank() == 0)

    def memory(self, *, all_ranks=False, signature=-1):
        """This rank's memory by kind, when the most is there and at most, as a table;
        of all ranks where every rank asks for that."""
        return self._core.memory(self._signature("memory", signature), bool(all_ranks), False)

    def _signature(self, call, signature):
        n = self._core.n_signatures
        if not n:
            raise RuntimeError(
                f"{call}: {type(self).__name__} is not compiled yet. Call the graph, or compile(*inputs), first."
            )
        if not -n <= signature < n:
            raise IndexError(f"{call}: signature {signature} of {n} of {type(self).__name__}.")
        return signature % n


def _written(path, text, writes=True):
    """The text if there is no path, else the path. Ranks that write the same file write all of it."""
    if path is None:
        return text
    if writes:
        path = Path(path)
        own = path.with_name(f".{path.name}.{_C.rank()}")
        own.write_text(text)
        own.replace(path)
    return str(path)
