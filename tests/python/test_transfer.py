"""Two jobs, of which one exports weights and the other receives them: layouts, repeated refits, and every fault."""

import os
import signal
import socket
import struct

import pytest
from harness import ranks
from harness.jobs import Job, program
from harness.ports import free_port

import holon

# What both jobs know: a model, and its layouts by the number of ranks.
COMMON = """
import hashlib, os, signal, sys
import holon as flow
from holon import nn

B, S = flow.sbp.broadcast, flow.sbp.split
rank, n = flow.env.get_rank(), flow.env.get_world_size()
address = sys.argv[1]

def model(seed, dtype=flow.float32):
    flow.manual_seed(seed)
    made = nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 40), nn.BatchNorm1d(40)).to(dtype)
    if n == 1:
        return made
    # Four ranks: 2-way data x 2-way tensor parallel.
    place = flow.placement("cpu", [[0, 1], [2, 3]] if n == 4 else list(range(n)))
    outer = [B] if n == 4 else []
    made.to_global(place, outer + [B])
    made[0].to_global(place, outer + [S(0)])
    made[2].weight = nn.Parameter(made[2].weight.to_global(place, outer + [S(1)]))
    return made

def digest(module):
    h = hashlib.sha256()
    for name, t in sorted(module.state_dict().items()):
        h.update(name.encode() + t.float().numpy().tobytes())
    return h.hexdigest()

def report(call):
    try:
        call()
        print("done")
    except Exception as e:
        print(f"{type(e).__name__}: {e}")
"""


def address():
    return f"127.0.0.1:{free_port()}"


@pytest.fixture
def jobs(tmp_path):
    """Returns a function that makes a program of COMMON and a text."""
    count = iter(range(100))
    return lambda text: program(tmp_path / f"program{next(count)}.py", COMMON + text)


def test_other_names(jobs):
    """A server with other names and transposed weights receives by a KeyMap, in the layout that it wants."""
    at = address()
    trainer = jobs("""
flow.export(model(7), to=address)
""")
    server = jobs("""
keys = flow.KeyMap([
    ("up", "0.weight", {"kind": "transpose"}), ("up.b", "0.bias"),
    ("down", "2.weight", {"kind": "transpose"}), ("down.b", "2.bias"),
    ("norm.{of*}", "3.{of*}"),
])
everywhere = flow.placement.all("cpu")
got = flow.receive(address, everywhere, sbp=lambda name: S(1) if name == "up" else B, key_map=keys)
want = keys.apply({name: t.to_global(everywhere, B) for name, t in model(7).state_dict().items()})
assert set(got) == set(want) and all((got[name].numpy() == want[name].numpy()).all() for name in want)
print(got["up"].sbp[0], tuple(got["up"].to_local().shape))
""")
    with Job(trainer, 4, at) as exports, Job(server, 2, at) as receives:
        exports.wait()
        assert receives.wait() == ["holon.sbp.split(dim=1) (48, 48)\n"] * 2


@pytest.mark.parametrize("trainers, servers", [(4, 2), (4, 1), (2, 4), (1, 2), (1, 1)])
def test_refits(jobs, trainers, servers):
    """A server gets three states in a row, bit for bit, each into its own layout."""
    at = address()
    trainer = jobs("""
for seed in range(3):
    trained = model(seed)
    flow.export(trained, to=address)
    print(digest(trained))
""")
    server = jobs("""
served = model(99)
for i in range(3):
    layouts = {k: v.sbp for k, v in served.state_dict().items() if v.is_global}
    flow.receive(address, into=served)
    assert layouts == {k: v.sbp for k, v in served.state_dict().items() if v.is_global}
    print(digest(served))
""")
    with Job(trainer, trainers, at) as exports, Job(server, servers, at) as receives:
        printed = receives.wait() + exports.wait()
    assert len({*printed}) == 1 and len({*printed[0].split()}) == 3


def test_launched_jobs_with_a_token(jobs, tmp_path):
    """As a user starts them; the server takes one half of the state, in another dtype."""
    at = address()
    trainer = jobs("""
flow.export({"model": model(1, flow.bfloat16).state_dict(), "step": 7}, to=address)
""")
    server = jobs("""
served = model(2)
flow.receive(address, into=served, prefix="model.")
if rank == 0:
    print(digest(served) == digest(model(1, flow.bfloat16)))
else:
    digest(served), digest(model(1, flow.bfloat16))
""")
    with Job(trainer, 4, at, HOLON_TRANSFER_TOKEN="secret"):
        done = ranks.launch(server, 2, arguments=[at], HOLON_TRANSFER_TOKEN="secret")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True"]


def test_options(jobs):
    at = address()
    trainer = jobs("""
everywhere = flow.placement.all("cpu")
x = flow.arange(12).reshape(4, 3).to_global(everywhere, B)
state = {"a": x.to_global(everywhere, S(0)), "b.c": x.to_global(everywhere, S(1)), "local": flow.ones(2)}
for _ in range(3):
    flow.export(state | {"note": "text"}, to=address)
for _ in range(2):
    report(lambda: flow.export(state, to=address))
""")
    server = jobs("""
everywhere = flow.placement.all("cpu")
found = flow.receive(address)
assert found["note"] == "text" and found["a"].sbp == (S(0),) and found["local"].is_local
found = flow.receive(address, everywhere, sbp=lambda name: S(1) if name == "a" else B)
assert found["a"].sbp == (S(1),) and found["b.c"].sbp == (B,) and found["local"].sbp == (B,)
assert found["a"].tolist() == found["b.c"].tolist() == flow.arange(12).reshape(4, 3).tolist()
found = flow.receive(address, device="cpu", prefix="b.", key_map=lambda name: "w" + name)
assert list(found) == ["wc"] and found["wc"].is_local
report(lambda: flow.receive(address, prefix="none."))
report(lambda: flow.receive(address, into=nn.Linear(2, 2)))
report(lambda: flow.receive(address, sbp=B))
report(lambda: flow.receive("nowhere"))
""")
    with Job(trainer, 2, at) as exports, Job(server, 3, at) as receives:
        for text in receives.wait():
            missing, names, sbp, form = text.splitlines()
            assert "no tensor of the job that exports to" in missing and "by the prefix 'none.'" in missing
            assert "'a' is not expected" in names and "'weight' is missing" in names
            assert sbp == "ValueError: receive: sbp requires a placement."
            assert 'the address is "nowhere". Give host and port' in form
        for text in exports.wait():  # what the other job cannot take is an error here, too
            missing, names = text.splitlines()
            assert "failed: receive: " in missing and "by the prefix 'none.'" in missing
            assert "failed: receive: " in names and "'weight' is missing" in names


def reports(job, ranks_=None):
    return [text.splitlines()[-1] for text in job.wait(ranks_)]


EXPORT = 'report(lambda: flow.export({"model": model(1).state_dict()}, to=address, timeout=float(sys.argv[2])))'
RECEIVE = "report(lambda: flow.receive(address, timeout=float(sys.argv[2])))"


def test_ctrl_c_ends_a_wait(jobs):
    at = address()
    interrupted = """
try:
    print("waits", flush=True)
    CALL
except KeyboardInterrupt:
    print("interrupted")
"""
    for call in ("flow.receive(address)", "flow.export({}, to=address)"):
        with Job(jobs(interrupted.replace("CALL", call)), 1, at) as job:
            assert job.line(0) == "waits"
            # It may not wait yet: then Python itself raises it.
            job.signal(0, signal.SIGINT)
            assert job.wait() == ["interrupted\n"]


def test_nobody_comes(jobs):
    at = address()
    with Job(jobs(EXPORT), 2, at, 0.3) as exports, Job(jobs(RECEIVE), 2, address(), 0.3) as receives:
        for text in reports(exports):
            assert text.startswith(f"RuntimeError: export: rank 0: no job receives at {at} (Connection refused)")
        for text in reports(receives):
            assert "receive: rank 0: no job has exported to" in text and "within 0.3 s" in text


def test_another_token(jobs):
    """Who has another one is told so, and keeps nobody out."""
    at = address()
    with Job(jobs(RECEIVE), 2, at, 60, HOLON_TRANSFER_TOKEN="right") as receives:
        with Job(jobs(EXPORT), 2, at, 60, HOLON_TRANSFER_TOKEN="wrong") as exports:
            for text in reports(exports):
                assert "refused this job: its token is different" in text
        with Job(jobs(EXPORT), 1, at, 60, HOLON_TRANSFER_TOKEN="right") as exports:
            assert reports(exports) == ["done"] and reports(receives) == ["done"] * 2


@pytest.mark.parametrize("call", ["export({}, to=", "receive("])
def test_other_hosts_require_a_token(monkeypatch, call):
    monkeypatch.delenv("HOLON_TRANSFER_TOKEN", raising=False)
    with pytest.raises(ValueError, match="HOLON_TRANSFER_TOKEN"):
        eval(f"holon.{call}'192.0.2.1:29600')")


def test_address_in_use():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        at = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(RuntimeError, match="receive: cannot listen at .* Another program uses the port"):
            holon.receive(at, timeout=1)


# A rank is lost, or stops, when both jobs are in the middle: between two tensors of a rank that receives.
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGKILL, id="killed"),
        pytest.param(signal.SIGSTOP, id="stopped", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("who", ["exports", "receives"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_rank_is_lost(jobs, tmp_path, number, who, which):
    at = address()
    server = jobs(f"""
def sbp(name, names=[]):
    names.append(name)
    if len(names) == 4 and rank == 1:
        while not os.path.exists({str(tmp_path / "victim")!r}):
            pass
        victim = int(open({str(tmp_path / "victim")!r}).read())
        os.kill(victim, {int(number)})
        # A process that is stopped, or dead, before this one goes on.
        while victim != os.getpid() and open(f"/proc/{{victim}}/stat").read().rpartition(")")[2].split()[0] not in "TZ":
            pass
    return B
report(lambda: flow.receive(address, flow.placement.all("cpu"), sbp=sbp))
""")
    limit = {"HOLON_COMM_TIMEOUT_S": 4}
    with Job(server, 2, at, **limit) as receives:
        with Job(jobs(EXPORT), 2, at, 60, **limit) as exports:
            (tmp_path / "part").write_text(str((exports if who == "exports" else receives).pid(which)))
            os.rename(tmp_path / "part", tmp_path / "victim")
            left = {job: [0, 1] for job in (exports, receives)}
            left[exports if who == "exports" else receives].remove(which)
            for job, those in left.items():
                for text in reports(job, those):
                    assert text.startswith("RuntimeError: "), text


class Stranger:
    """Speaks to a job byte by byte."""

    def __init__(self, at):
        host, port = at.rsplit(":", 1)
        while True:
            try:
                self.socket = socket.create_connection((host, int(port)), timeout=60)
                return
            except ConnectionRefusedError:
                pass

    def closed(self):
        """Whether the other side ends the connection, whatever it has said before."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except OSError:
            pass
        return True


def test_strangers_do_not_keep_the_other_job_out(jobs):
    """Those that say nothing, noise, the size of a file of petabytes, or half of a handshake."""
    at = address()
    with Job(jobs(RECEIVE), 2, at, 60) as receives:
        strangers = [Stranger(at) for _ in range(100)]  # more than are kept waiting
        for i, stranger in enumerate(strangers):
            try:
                if i % 4 == 1:
                    stranger.socket.sendall(os.urandom(1000))
                elif i % 4 == 2:
                    stranger.socket.sendall(struct.pack("<cQ", b"m", 1 << 50))
                elif i % 4 == 3:
                    stranger.socket.sendall(b"HOLONc02" + os.urandom(20))
            except OSError:
                pass  # it has been dropped
        with Job(jobs(EXPORT), 2, at, 60) as exports:
            assert reports(receives) == ["done"] * 2
            assert reports(exports) == ["done"] * 2
        assert all(stranger.closed() for stranger in strangers)
