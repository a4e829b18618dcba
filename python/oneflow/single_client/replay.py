"""What one rank does: it keeps its part of the variables, and replays the recorded ops of a job on tensors."""

import numpy as np

from holon import _C
from holon.autograd import no_grad

from .blob import Blob, Rows
from .record import apply, leaves, map_leaves, placed

B = _C.sbp.broadcast


class Plan:
    """What all ranks of a session know."""

    def __init__(self, session, variables):
        self.session, self.variables = session, variables
        self.jobs = list(session.jobs.values())
        self.processes = _C.world_size() > 1
        self.seed = _C.initial_seed()
        machines, devices = session.machines_and_devices()
        self.n = machines * devices


class Rank:
    """The state of one rank: variables (name -> global tensor), optimizer states among them,
    and a runner for each job."""

    def __init__(self, rank, plan):
        self.rank, self.plan = rank, plan
        self._placements, self._runners = {}, {}
        _C.manual_seed(plan.seed)
        self.variables = {}
        with no_grad():
            for name, d in plan.variables.items():
                placement = self.placement(plan.session.ranks_of(d.placement))
                sbp = d.distribute.sbp()
                t = _C.ops["empty"](*d.shape, dtype=d.dtype, placement=placement, sbp=B if sbp is None else sbp)
                d.initializer.fill(t, name, d.seed)
                self.variables[name] = t
        for d in plan.variables.values():
            if d.trainable and d.dtype.is_floating_point:
                self.variables[d.name].requires_grad_(True)
        for job in plan.jobs:
            if job.optimizer is not None:
                self._make_states(job)

    def _make_states(self, job):
        job_states = {}
        with no_grad():
            for use in job.variables.values():
                w = self.variables[use.name]
                if w.requires_grad:
                    job_states[use.name] = {}
                    for suffix, state in job.optimizer.state_of(use.name, w).items():
                        if f"{use.name}-{suffix}" in self.plan.variables:
                            raise ValueError(
                                f"{job.name}: the optimizer keeps a state '{use.name}-{suffix}', "
                                "and a variable has this name. Rename it."
                            )
                        job_states[use.name][suffix] = self.variables.setdefault(f"{use.name}-{suffix}", state)
        self._runners[job.name, "states"] = job_states

    def placement(self, ranks):
        found = self._placements.get(ranks)
        if found is None:
            found = self._placements[ranks] = _C.placement("cpu", list(ranks))
        return found

    def states_of(self, job):
        return self._runners[job.name, "states"]

    def call(self, job, arrays, numbers):
        """One call of the job: the values of its results and then of what is watched,
        None where another rank has it."""
        runner = self._runners.get(job.name)
        if runner is None:
            if job.mirrored:
                from .mirrored import Mirrored as kind
            else:
                from .consistent import Consistent as kind
            runner = self._runners[job.name] = kind(job, self)
        return runner(arrays, numbers)

    # Variables as a whole

    def read(self, name):
        """The whole value, on the ranks that the caller sees."""
        with no_grad():
            return self.host(self.whole(self.variables[name].detach()))

    def write(self, name, array):
        with no_grad():
            t = self.variables[name]
            t.detach().copy_(_C.tensor(array, dtype=t.dtype, placement=t.placement, sbp=t.sbp))

    def whole(self, t):
        """t broadcast to where its value is read: every process, or one of the ranks that have it."""
        ranks = tuple(range(self.plan.n)) if self.plan.processes else tuple(t.placement.ranks)[:1]
        return t.to_global(self.placement(ranks), B)

    def host(self, t):
        """The array of what whole() returned; None where this rank has nothing of it."""
        return np.array(t.to_local().cpu().numpy()) if self.rank in t.placement.ranks else None


def play(job, rank, values):
    """Runs the job's recorded ops. values: blobs to tensors, or to lists of the parts of streams;
    those of the inputs and variables are there."""
    # Ops on streams that follow each other go part by part,
    # so that devices of different scopes work on different parts at a time.
    waiting = []
    for node in job.nodes:
        if node.spread and node.parts:
            if waiting and waiting[0].parts != node.parts:
                _play_parts(waiting, job, rank, values)
            waiting.append(node)
            continue
        begins_stream = not node.spread and node.parts and all(b in values for b in leaves(node.args, Blob))
        if waiting and not begins_stream:
            _play_parts(waiting, job, rank, values)
        _play(node, job, rank, values)
    _play_parts(waiting, job, rank, values)


def _play_parts(nodes, job, rank, values):
    if not nodes:
        return
    first = next(b for b in leaves((nodes[0].args, nodes[0].kwargs), Blob) if b._parts)
    made = {blob for node in nodes for blob in leaves(node.outputs, Blob)}
    # What comes from before goes to its devices first:
    # a device that gives some of it would else be waited for by each part.
    before = {}
    for node in nodes:
        placement = _placement_of(node, job, rank)
        for blob in leaves((node.args, node.kwargs), Blob):
            if blob not in made and (blob, placement) not in before:
                before[blob, placement] = _bring(values[blob], placement)
    for blob in made:
        values[blob] = []
    for part in range(len(values[first])):
        for node in nodes:
            _play(node, job, rank, values, part, before)
    nodes.clear()


def _placement_of(node, job, rank):
    return None if job.mirrored else rank.placement(rank.plan.session.ranks_of(node.scope.placement))


def _bring(t, placement):
    """A tensor, or each of a stream, to the placement of an op; None: where it is."""
    if isinstance(t, list):
        return [_bring(one, placement) for one in t]
    if placement is None or (t.is_global and t.placement == placement):
        return t
    return _C.on_stage(t, placement) if t.is_global else t.to_global(placement, B)


def _play(node, job, rank, values, part=None, before=None):
    """part: which of the streams among the arguments; None: there is none, or the function takes lists.
    before: values that are there already."""
    placement = _placement_of(node, job, rank)

    def value(x):
        if isinstance(x, Rows):
            v = values[x.blob]
            return (v[part or 0] if isinstance(v, list) else v).shape[0]
        v = x
        if isinstance(x, Blob):
            v = before[x, placement] if before and (x, placement) in before else values[x]
        return _bring(v[part] if part is not None and isinstance(v, list) else v, placement)

    try:
        with placed(placement):
            args, kwargs = map_leaves((node.args, node.kwargs), (Blob, Rows, _C.Tensor), value)
            if not node.spread:
                values[node.outputs] = node.fn(*args, **kwargs)
                return
            for blob, t in zip(leaves(node.outputs, Blob), leaves(apply(node.fn, args, kwargs), _C.Tensor)):
                if part is None:
                    values[blob] = t
                else:
                    values[blob].append(t)
    except Exception as error:
        _explain(error, node)
        raise


def _explain(error, node):
    """Says in the error which op it was, once, and not what a graph would add."""
    if not getattr(error, "_explained", False) and error.args and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]} (in {node.name}, {node.site})", *error.args[1:])
        error._explained = True
