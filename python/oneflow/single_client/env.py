"""The machines of a program that runs on several:
env.machine([{"addr": "10.0.0.1"}, ...]), each of which starts the same script; what else flow.env has."""

from . import session as _session

__all__ = [
    "addresses",
    "ctrl_port",
    "current_machine_id",
    "current_resource",
    "data_port",
    "grpc_use_no_signal",
    "init",
    "init_rdma",
    "log_dir",
    "logbuflevel",
    "logtostderr",
    "machine",
    "rdma_is_initialized",
]


def _set(name, value, kind):
    if not isinstance(value, kind) or isinstance(value, bool) and kind is int:
        raise TypeError(f"env.{name}: takes {kind.__name__}, got {type(value).__name__}.")
    if _session.default().is_started:
        print(f"env.{name}({value!r}): the session runs already, so this changes nothing.")
        return False
    _session.default().settings[f"env.{name}"] = value
    return True


def machine(*machines):
    """The addresses of all machines, the first being the master: dicts with "addr", or texts;
    a list of them, or several arguments."""
    given = machines[0] if len(machines) == 1 and isinstance(machines[0], (list, tuple)) else machines
    addresses = [m.get("addr") if isinstance(m, dict) else m for m in given]
    assert addresses and all(isinstance(a, str) for a in addresses), (
        f'env.machine: takes [{{"addr": "10.0.0.1"}}, ...] or texts, got {machines!r}.'
    )
    assert len(set(addresses)) == len(addresses), f"env.machine: {', '.join(addresses)}: an address is there twice."
    return _set("machine", addresses, list)


def addresses():
    """What machine() was given."""
    return _session.default().settings.get("env.machine", [])


def ctrl_port(port):
    return _set("ctrl_port", port, int)


def data_port(port):
    return _set("data_port", port, int)


def log_dir(folder):
    return _set("log_dir", folder, str)


def logtostderr(level):
    return _set("logtostderr", level, int)


def logbuflevel(level):
    return _set("logbuflevel", level, int)


def grpc_use_no_signal(val=True):
    """There is no gRPC here."""


def init():
    """Does nothing: the first job brings up what it needs."""
    return True


def init_rdma():
    """Does nothing: messages between hosts go over TCP."""


def rdma_is_initialized():
    return False


def current_machine_id():
    """This machine's number in env.machine()'s list."""
    from holon.env import get_node_rank

    return get_node_rank()


def current_resource():
    """How many machines and devices there are, as a dict."""
    current = _session.default()
    machines, devices = current.machines_and_devices()
    return {"machine_num": machines, "gpu_device_num": devices, "cpu_device_num": devices}
