"""A job in the mirrored view on one rank: its ops run on this rank's own tensors,
and gradients are summed over the ranks."""

import numpy as np

from holon import _C
from holon.autograd import enable_grad, no_grad

from . import replay, training
from .blob import Blob
from .consistent import part_of
from .record import leaves

B = _C.sbp.broadcast


class Mirrored:
    """Runs the job's calls. Sizes may differ between ranks and calls, so nothing is compiled."""

    def __init__(self, job, rank):
        self.job, self.rank = job, rank
        self.placement = rank.placement(job.device_ranks)
        self.at = job.device_ranks.index(rank.rank) if rank.rank in job.device_ranks else None
        self.draws = rank.rank << 40  # of this rank's random numbers: others draw elsewhere
        self.scale = training.LossScale(job)
        self.variables, self.states = {}, {}
        with no_grad():
            for use in job.variables.values():
                # Copies of this rank, which share the memory of the variables.
                w = rank.variables[use.name]
                if w.placement != self.placement or any(s != B for s in w.sbp):
                    raise ValueError(
                        f"{job.name}: the variable '{use.name}' is on {w.placement} under {w.sbp}. In the mirrored "
                        "view each device of the job has a copy of every variable: no scope.placement or "
                        "distribute.split for it."
                    )
                if self.at is not None:
                    self.variables[use.name] = w.to_local().detach().requires_grad_(w.requires_grad)
            if job.optimizer is not None and self.at is not None:
                for name, states in rank.states_of(job).items():
                    self.states[name] = {suffix: s.to_local() if s.is_global else s for suffix, s in states.items()}

    def __call__(self, arrays, numbers):
        job = self.job
        n_out = len(leaves(job.result, Blob)) + len(job.watches)
        if self.at is None:
            return self._gathered([None] * n_out)
        seed, seeded, own, shared = _C.get_rng_state()
        _C.set_rng_state((seed, True, self.draws, shared))
        try:
            with enable_grad() if job.optimizer is not None else no_grad():
                outputs = self._run(arrays, numbers)
        finally:
            self.draws = _C.get_rng_state()[2]
            _C.set_rng_state((seed, seeded, own, _C.get_rng_state()[3]))
        return self._gathered(outputs)

    def _run(self, arrays, numbers):
        job, values = self.job, {}
        for (blob, placeholder), array in zip(job.inputs, arrays):
            if placeholder.kind == "Numpy":
                values[blob] = _C.from_numpy(
                    np.array(array[part_of(array.shape, placeholder.batch_axis, self.at, job.n_devices)], order="C")
                )
            elif placeholder.kind == "ListNumpy":
                values[blob] = _C.from_numpy(array[self.at])
            else:
                values[blob] = [_C.from_numpy(a) for a in array[self.at]]
            if any(w.of_gradient and w.blob is blob for w in job.watches) and blob.dtype.is_floating_point:
                for t in values[blob] if isinstance(values[blob], list) else [values[blob]]:
                    t.requires_grad_(True)
        for use in job.variables.values():
            values[use.blob] = self.variables[use.name]
        shown = [*leaves(job.result, Blob), *(w.blob for w in job.watches if not w.of_gradient)]
        results = {b: _host(values[b]) for b in shown if b in values}
        replay.play(job, self.rank, values)
        # Before the update, as a value may be in the memory of a variable.
        results |= {b: _host(values[b]) for b in shown if b not in results}
        watched = {}
        if job.optimizer is not None:
            self._train(values, numbers, watched)
        outputs = [results[b] for b in leaves(job.result, Blob)]
        return outputs + [(watched if w.of_gradient else results)[w.blob] for w in job.watches]

    def _train(self, values, numbers, watched):
        job = self.job
        trained = [(name, w) for name, w in self.variables.items() if w.requires_grad]
        inner = [w.blob for w in job.watches if w.of_gradient]
        flat = [t for b in inner for t in (values[b] if isinstance(values[b], list) else [values[b]])]
        known = [t for t in flat if t.requires_grad]
        scale = None if self.scale.policy is None else _C.tensor(float(self.scale.value))
        found = training.gradients(job, values, [*(w for _, w in trained), *known], scale)
        of_flat = dict(zip(map(id, known), found[len(trained) :]))
        with no_grad():
            # Sums over the ranks: of gradients, and of the number of samples.
            entries = [(name, w, self._sum(g)) for (name, w), g in zip(trained, found) if g is not None]
            of_flat |= {id(w): g for _, w, g in entries}
            for b in inner:
                v = values[b]
                gradients = [
                    training.watched(of_flat.get(id(t)), t, scale) for t in (v if isinstance(v, list) else [v])
                ]
                watched[b] = _host(gradients if isinstance(v, list) else gradients[0])
            first = values[job.losses[0]]
            n = sum(t.numel() for t in first) if isinstance(first, list) else first.numel()
            count = self._sum(_C.tensor(float(n)))
            gradients, finite = training.averaged(job, entries, count, scale)
            variables = [(name, w) for name, w, _ in entries]
            training.update(job, variables, gradients, self.states, numbers, finite, self.scale)

    def _sum(self, t):
        if self.job.n_devices == 1:
            return t
        return t.to_global(self.placement, _C.sbp.partial_sum).to_global(self.placement, B).to_local()

    def _gathered(self, outputs):
        """As they are where the ranks are threads;
        under the launcher every process gets a list with what each rank has."""
        if not self.rank.plan.processes:
            return outputs
        with no_grad():
            return [self._gather_lists(o) for o in outputs]

    def _gather_lists(self, mine):
        # Lists of tensors first agree on how many there are; -1: one tensor, -2: nothing.
        kind = len(mine) if isinstance(mine, list) else -2 if mine is None else -1
        several = self._all(np.array([kind], np.int64)).reshape(-1)
        if (several < 0).all():
            return self._gather(mine)
        items = [
            self._gather(mine[i] if isinstance(mine, list) and i < len(mine) else None)
            for i in range(int(several.max()))
        ]
        return [[item[r] for item in items[:n]] if n >= 0 else None for r, n in enumerate(several)]

    def _gather(self, mine):
        """[array of each rank, or None]; shapes may differ, so they are padded to one length."""
        none = mine is None
        about = np.array([[-1, -1] if none else [mine.ndim, _DTYPES.index(mine.dtype.name)]], np.int64)
        ndims, kinds = self._all(about).T
        ndim, dtype = int(ndims.max()), np.dtype(_DTYPES[int(kinds.max())])
        shapes = self._all(np.array([(0,) * ndim if none else mine.shape], np.int64).reshape(1, ndim))
        flat = np.zeros((1, int(shapes.prod(axis=1).max())), dtype)
        if not none:
            flat[0, : mine.size] = mine.reshape(-1)
        every = self._all(flat)
        return [
            every[r, : int(shape.prod())].reshape(shape) if ndims[r] >= 0 else None for r, shape in enumerate(shapes)
        ]

    def _all(self, row):
        """The rows of all ranks, one after the other."""
        n = self.rank.plan.n
        everywhere = self.rank.placement(tuple(range(n)))
        return (
            _C.from_numpy(row).to_global(everywhere, _C.sbp.split(0)).to_global(everywhere, B).to_local().cpu().numpy()
        )


_DTYPES = ("bool", "int8", "uint8", "int32", "int64", "float16", "float32", "float64", "int16")


def _host(v):
    """A copy of the value, which a later in-place change does not reach."""
    return [_host(t) for t in v] if isinstance(v, list) else np.array(v.detach().numpy())
