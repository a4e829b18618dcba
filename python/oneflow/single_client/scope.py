"""Where the ops of a job function run and how its blobs are seen:
placement, consistent or mirrored view, variable prefixes."""

import re
import warnings

__all__ = [
    "consistent_view",
    "consistent_view_enabled",
    "current_scope",
    "mirrored_view",
    "mirrored_view_enabled",
    "namespace",
    "placement",
]


class Scope:
    """What counts for an op: placement (None: all devices), whether the view is mirrored,
    the prefix of variables' names."""

    def __init__(self, placement=None, mirrored=False, prefix=""):
        self.placement, self.mirrored, self.prefix = placement, mirrored, prefix

    def changed(self, **values):
        return Scope(**{**vars(self), **values})

    def __repr__(self):
        view = "mirrored" if self.mirrored else "consistent"
        return f"Scope({self.placement or 'all devices'}, {view} view, namespace '{self.prefix}')"


class _ScopeManager:
    """A `with` block inside a job function: _change(scope) is the scope in it. May be entered several times."""

    def __enter__(self):
        from . import job

        current = job.current_or_none()
        if current is None:
            warnings.warn(
                f"{self!r} outside a job function changes nothing: "
                "enter it in the function's body, or give it to function_config().",
                stacklevel=2,
            )
        else:
            current.scopes.append(self._change(current.scopes[-1]))
        return self

    def __exit__(self, *_):
        from . import job

        current = job.current_or_none()
        if current is not None and len(current.scopes) > 1:
            current.scopes.pop()


class placement(_ScopeManager):
    """The devices of the ops and variables made in the block: placement("gpu", "0:0-3"). The innermost block counts.

    machine_device_ids: "machine:device" or "machine:first-last" (last included), or a list of such strings.
    """

    def __init__(self, device_tag, machine_device_ids):
        assert device_tag in ("cpu", "gpu", "cuda"), (
            f'scope.placement: the device is {device_tag!r}; it must be "cpu" or "gpu".'
        )
        ids = [machine_device_ids] if isinstance(machine_device_ids, str) else machine_device_ids
        assert isinstance(ids, (list, tuple)) and ids, (
            f'scope.placement: {machine_device_ids!r} is not text such as "0:0-3", nor a list of such.'
        )
        self.device_tag = "cpu" if device_tag == "cpu" else "gpu"
        self._devices = []
        for text in ids:
            found = isinstance(text, str) and re.fullmatch(r"@?(\d+):(\d+)(?:-(\d+))?", text)
            assert found, (
                f'scope.placement: {text!r} must be "machine:device" or "machine:first-last", such as "0:0" or "0:0-3".'
            )
            machine, first, last = int(found[1]), int(found[2]), int(found[3] or found[2])
            assert first <= last, f"scope.placement: {text!r} ends before it begins."
            self._devices += [(machine, d) for d in range(first, last + 1) if (machine, d) not in self._devices]

    def ranks(self, machines, devices):
        """The ranks of these devices. Errors (ValueError): a device that the session does not have."""
        for machine, device in self._devices:
            if machine >= machines or device >= devices:
                raise ValueError(
                    f"{self!r}: there is no device {machine}:{device}. The session has {machines} machine(s) with "
                    f"{devices} device(s) each: config.gpu_device_num(n), config.machine_num(n)."
                )
        return tuple(machine * devices + device for machine, device in self._devices)

    def _change(self, scope):
        return scope.changed(placement=self)

    def __eq__(self, other):
        return isinstance(other, placement) and self._devices == other._devices

    def __hash__(self):
        return hash(tuple(self._devices))

    def __repr__(self):
        return f'scope.placement("{self.device_tag}", {[f"{m}:{d}" for m, d in self._devices]})'


class mirrored_view(_ScopeManager):
    """Blobs are one device's part, and every device has a copy of each variable."""

    def _change(self, scope):
        return scope.changed(mirrored=True)

    def __repr__(self):
        return "scope.mirrored_view()"


class consistent_view(_ScopeManager):
    """Blobs are whole, however they are distributed."""

    def _change(self, scope):
        return scope.changed(mirrored=False)

    def __repr__(self):
        return "scope.consistent_view()"


class namespace(_ScopeManager):
    """Names of variables made in the block begin with "name-"."""

    def __init__(self, name):
        assert isinstance(name, str) and name, f"scope.namespace: takes a name, got {name!r}."
        self._name = name

    def _change(self, scope):
        return scope.changed(prefix=f"{scope.prefix}{self._name}-")

    def __repr__(self):
        return f"scope.namespace({self._name!r})"


def current_scope():
    """The settings for an op that is recorded now. Only inside a job function."""
    from . import job

    return job.current("current_scope").scope()


def mirrored_view_enabled():
    from . import job

    current = job.current_or_none()
    return current is not None and current.scope().mirrored


def consistent_view_enabled():
    from . import job

    current = job.current_or_none()
    return current is not None and not current.scope().mirrored
