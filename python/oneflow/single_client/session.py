"""The session: the job functions of a program, their variables, and the ranks that run them."""

import atexit
import traceback

from holon import _C

from . import ranks, replay

__all__ = ["clear_default_session", "eager_execution_enabled", "enable_eager_execution", "sync_default_session"]


class Session:
    """Begins with the first call of a job: all jobs are traced, variables made, and ranks started."""

    def __init__(self):
        self.settings, self.jobs, self.variables = {}, {}, {}
        self.world = None
        self.closed = False

    @property
    def is_started(self):
        return self.world is not None

    # Devices

    def machines_and_devices(self):
        """The number of machines, and of devices on each."""
        from . import env

        settings, launched = self.settings, _C.world_size() > 1
        if len(env.addresses()) > 1 and not launched:
            raise RuntimeError(
                f"env.machine names {len(env.addresses())} machines, and this process runs alone. Start the program on "
                "each machine by holon.distributed.launch --nnodes, one process for each device."
            )
        machines = settings.get("machine_num", _C.world_size() // _C.local_world_size() if launched else 1)
        counts = [settings[key] for key in ("gpu_device_num", "cpu_device_num") if settings.get(key)]
        devices = max(counts) if counts else _C.local_world_size() if launched else 1
        if launched and machines * devices != _C.world_size():
            raise RuntimeError(
                f"the program asks for {machines} machine(s) with {devices} device(s) each, and {_C.world_size()} "
                "processes run it. Start one process for each device (holon.distributed.launch --nproc_per_node), "
                "or none but this."
            )
        return machines, devices

    def ranks_of(self, placement):
        """The ranks of a scope's placement; None: the default, all GPUs of all machines,
        or all CPUs where there are none."""
        machines, devices = self.machines_and_devices()
        if placement is not None:
            return placement.ranks(machines, devices)
        used = self.settings.get("gpu_device_num") or devices
        return tuple(m * devices + d for m in range(machines) for d in range(used))

    # Life

    def add(self, job):
        if self.is_started:
            raise RuntimeError(
                f"global_function: {job.name} comes after the session's first call. "
                "Decorate all job functions before any is called, or start over with clear_default_session()."
            )
        if job.name in self.jobs:
            raise ValueError(
                f"global_function: there is a job function named {job.name} already ({self.jobs[job.name].site})."
            )
        self.jobs[job.name] = job

    def start(self):
        """Traces all jobs and starts the ranks, where that has not been done.
        Errors: what a job's body raises; jobs that do not agree on a variable."""
        if self.closed:
            raise RuntimeError(
                "the session of this job function is over: clear_default_session() forgot it. "
                "Decorate the function again."
            )
        if self.is_started:
            self.world.check()
            return
        machines, devices = self.machines_and_devices()
        variables = {}
        for job in self.jobs.values():
            job.trace(self)
            for use in job.variables.values():
                declared = variables.setdefault(use.name, use.declaration)
                difference = use.declaration.difference(declared)
                if difference:
                    raise ValueError(
                        f"the variable '{use.name}' has another {difference}. "
                        "Job functions that share a variable must agree."
                    )
        world = ranks.start(machines * devices)
        plan = replay.Plan(self, variables)
        try:
            world.run(lambda rank: replay.Rank(rank, plan), state=True)
        except BaseException:
            world.close()
            raise
        self.variables, self.world = variables, world

    def call(self, job, args):
        """Runs the job; what it returns is by its annotation."""
        self.start()
        return self.world.call(job, args, self)

    def run(self, function):
        """function(rank's state) on all ranks, after the calls before; returns their results."""
        self.start()
        return self.world.run(function)

    def deliver(self, function):
        self.world.deliver(function)

    def sync(self):
        if self.is_started:
            self.world.sync()

    def close(self):
        """Waits for all calls, and ends. Returns the error of one that nobody has seen, or None."""
        self.closed = True
        return self.world.close() if self.world is not None else None


_default = Session()


def default():
    """The session that job functions belong to."""
    return _default


def clear_default_session():
    """Ends the session: job functions, variables and config are forgotten, and others may follow."""
    global _default
    ended, _default = _default, Session()
    ended.close()


def sync_default_session():
    """Waits for all calls and their callbacks. Errors: what one of them raised that nobody has seen."""
    _default.sync()


def eager_execution_enabled():
    return _default.settings.get("eager", False)


def enable_eager_execution(val=True):
    """Accepted: ops of job functions are recorded either way, and tensors outside them are eager."""
    if _default.is_started:
        return False
    _default.settings["eager"] = bool(val)
    return True


def _end():
    error = _default.close()
    if error is not None:
        traceback.print_exception(error)


atexit.register(_end)
