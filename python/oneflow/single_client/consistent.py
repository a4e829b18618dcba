"""A job in the consistent view on one rank: an nn.Graph that replays the job's ops on global tensors."""

from holon.nn.graph import Graph

from holon import _C
from holon.autograd import enable_grad, no_grad

from . import replay, training
from .blob import Blob
from .record import leaves

B = _C.sbp.broadcast


class _Step(Graph):
    def __init__(self, runner):
        super().__init__(runner.job.name)
        self.runner = runner

    def build(self):
        return self.runner.build()


class Consistent:
    """Runs the job's calls. Arguments and the loss scale go into tensors that the graph reads; what the optimizer takes
    for gradients comes out, and its update rule follows."""

    def __init__(self, job, rank):
        self.job, self.rank = job, rank
        placement = rank.placement(job.device_ranks)
        at = job.device_ranks.index(rank.rank) if rank.rank in job.device_ranks else None
        self.arguments = []  # (tensor of this rank's part, the part as a slice of the array)
        self.inputs = {}
        with no_grad():
            for blob, placeholder in job.inputs:
                axis = placeholder.batch_axis
                t = _C.ops["zeros"](
                    *blob.shape, dtype=blob.dtype, placement=placement, sbp=B if axis is None else _C.sbp.split(axis)
                )
                self.inputs[blob] = t
                self.arguments.append(
                    None if at is None else (t.to_local(), part_of(blob.shape, axis, at, len(job.device_ranks)))
                )
            everywhere = rank.placement(tuple(range(rank.plan.n)))
            self.scale_tensor = _C.ops["ones"](dtype=_C.float32, placement=everywhere, sbp=B)
        for w in job.watches:
            if w.of_gradient and w.blob in self.inputs and w.blob.dtype.is_floating_point:
                self.inputs[w.blob].requires_grad_(True)
        self.scale = training.LossScale(job)
        self.trained = []  # (name, variable) in the order of the gradients that the graph returns
        self.graph = _Step(self)

    def __call__(self, arrays, numbers):
        with no_grad():
            for array, argument in zip(arrays, self.arguments):
                if argument is not None:
                    argument[0].copy_(_C.from_numpy(array[argument[1]]))
            self.scale_tensor.to_local().fill_(self.scale.value or 1.0)
        with enable_grad() if self.job.optimizer is not None else no_grad():
            outputs, gradients, finite = self.graph()
        # Copies, as an output may be in the memory of a variable.
        arrays = [self.rank.host(t) for t in outputs]
        if self.job.optimizer is not None:
            states = self.rank.states_of(self.job)
            training.update(self.job, self.trained, gradients, states, numbers, finite, self.scale)
        return arrays

    def build(self):
        job, rank = self.job, self.rank
        shown = [*leaves(job.result, Blob), *(w.blob for w in job.watches if not w.of_gradient)]
        values = dict(self.inputs)
        for use in job.variables.values():
            values[use.blob] = rank.variables[use.name]
        # What the caller sees of inputs and variables is from before the ops.
        with no_grad():
            before = {b: values[b].detach().clone() for b in shown if b in values}
        replay.play(job, rank, values)
        watched = [w.blob for w in job.watches if w.of_gradient]
        found, gradients, finite = {}, [], None
        if job.optimizer is not None:
            trained = [use.name for use in job.variables.values() if rank.variables[use.name].requires_grad]
            weights = [rank.variables[name] for name in trained]
            inner = [values[b] for b in watched]
            flat = [t for v in inner for t in (v if isinstance(v, list) else [v])]
            known = [t for t in flat if t.requires_grad]
            scale = self.scale_tensor if self.scale.policy is not None else None
            all_grads = training.gradients(job, values, [*weights, *known], scale)
            of_flat = dict(zip(map(id, known), all_grads[len(weights) :]))
            for b, v in zip(watched, inner):
                found[b] = [training.watched(of_flat.get(id(t)), t, scale) for t in (v if isinstance(v, list) else [v])]
            entries = [(name, w, g) for name, w, g in zip(trained, weights, all_grads) if g is not None]
            first = job.losses[0]
            count = first.numel() * (first._parts or 1)
            gradients, finite = training.averaged(job, entries, count, scale)
            self.trained = [(name, w) for name, w, _ in entries]
        outputs = []
        with no_grad():
            for blob in leaves(job.result, Blob):
                outputs.append(before.get(blob, values[blob]))
            for w in job.watches:
                outputs.append(found[w.blob] if w.of_gradient else before.get(w.blob, values[w.blob]))
            return [rank.whole(_joined(v)) for v in outputs], gradients, finite


def part_of(shape, axis, at, n):
    """The slice of an array of this shape that part `at` of n has: sizes differ by one at most, the larger first."""
    if axis is None:
        return ()
    size, more = divmod(shape[axis], n)
    first = at * size + min(at, more)
    return (slice(None),) * axis + (slice(first, first + size + (at < more)),)


def _joined(v):
    """A stream's parts as one."""
    if not isinstance(v, list):
        return v.detach()
    return _C.ops["cat"]([t.detach() for t in v]) if len(v) > 1 else v[0].detach()
