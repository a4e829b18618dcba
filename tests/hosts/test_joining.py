"""Who may join a world of several hosts, and by which names and addresses hosts find each other."""

import contextlib
import re
import shutil
import sys
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import subprocess  # noqa: E402

from namespaces import Hosts  # noqa: E402
from test_hosts import BUILD, PORT, RANK_PROGRAM, by_hand, environment, finish, launch, pytestmark  # noqa: E402, F401

LAUNCHER = [BUILD / "bin/holon-launch"]


def node(hosts, i, *options, **extra):
    """The launcher of one host; its stderr apart."""
    command = [*LAUNCHER, f"--nnodes={hosts.n}", f"--node_rank={i}", "-n", "1", f"--master_addr={hosts.address(0)}"]
    return hosts.popen(
        i,
        [*command, f"--master_port={PORT}", *options, RANK_PROGRAM, "brief"],
        env=environment(**extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_the_token_that_is_shown():
    with Hosts(2, token=None) as hosts:
        first = node(hosts, 0)
        shown = re.search(r"HOLON_STORE_TOKEN=([0-9a-f]{32})$", first.stdout.readline().strip())
        assert shown
        second = node(hosts, 1, HOLON_STORE_TOKEN=shown[1])
        codes, outputs = finish([first, second])
    assert codes == [0, 0], outputs


def test_a_file_with_the_token(tmp_path):
    file = tmp_path / "token"
    with Hosts(2, token=None) as hosts:
        second = node(hosts, 1, f"--token_file={file}")
        codes, outputs = finish([node(hosts, 0, f"--token_file={file}"), second])
        assert codes == [0, 0], outputs
        codes, outputs = finish(by_hand(hosts, 1, [RANK_PROGRAM, "brief"], HOLON_STORE_TOKEN_FILE=file))
    assert codes == [0, 0], outputs
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.one_network
def test_without_a_token():
    """It is said at once, and not when the rendezvous has timed out."""
    with Hosts(2, token=None) as hosts:
        start = time.monotonic()
        codes, outputs = finish([node(hosts, 1)])
        assert codes == [2] and "machine 1 of 2 does not have the token" in outputs[0], outputs
        codes, outputs = finish(by_hand(hosts, 1, [RANK_PROGRAM, "brief"]))
        assert codes == [1, 1], outputs
        for text in outputs:
            assert "ranks on several hosts need a token" in text and "HOLON_STORE_TOKEN" in text, text
        # Ranks that do not say how many of them are on a host.
        lone = dict(RANK=1, WORLD_SIZE=2, LOCAL_RANK=0, MASTER_ADDR=hosts.address(0), MASTER_PORT=PORT)
        done = hosts.run(1, [RANK_PROGRAM, "brief"], env=environment(**lone), capture_output=True, text=True)
        assert done.returncode == 1 and "is not an address of this host (it has " in done.stderr, done.stderr
        assert time.monotonic() - start < 50


def test_another_token():
    with Hosts(2, token=None) as hosts:
        first, second = node(hosts, 0, HOLON_STORE_TOKEN="blue"), node(hosts, 1, HOLON_STORE_TOKEN="red")
        codes, outputs = finish([second])
        assert codes == [1] and "its token is different" in outputs[0], outputs
        codes, outputs = finish([first, node(hosts, 1, HOLON_STORE_TOKEN="blue")])
    assert codes == [0, 0], outputs


@pytest.mark.one_network
def test_one_host_by_its_own_address():
    """All ranks are on one host, which MASTER_ADDR names: no token is needed, and nobody else can reach the store."""
    with Hosts(1, token=None) as hosts:
        ranks = by_hand(hosts, 2, [RANK_PROGRAM, "hold"])
        listening = []
        for p in ranks:
            for line in p.stdout:
                if "ready" in line:
                    break
        listening = hosts.run(0, ["cat", "/proc/net/tcp", "/proc/net/tcp6"], capture_output=True, text=True).stdout
        for p in ranks:
            p.kill()
        finish(ranks)
    found = [line.split()[1] for line in listening.splitlines() if len(line.split()) > 3 and line.split()[3] == "0A"]
    assert found and all(place.startswith("0100007F:") for place in found), found


@pytest.mark.parametrize("by", ["launcher", "hand"])
def test_ipv6_alone(by):
    """The hosts have no address of IPv4 but the loopback one."""
    hosts = Hosts(2, ipv6=True)
    try:
        hosts.__enter__()
    except subprocess.CalledProcessError as e:
        pytest.skip(f"interfaces have no IPv6 here: {e.stderr}")
    with contextlib.ExitStack() as stack:
        stack.push(hosts)
        if by == "hand":
            ranks = by_hand(hosts, 2, [RANK_PROGRAM, "collectives"])
        else:
            ranks = launch(hosts, 2, RANK_PROGRAM, "collectives", launcher=LAUNCHER)
        codes, outputs = finish(ranks)
    assert codes == [0] * len(codes), outputs


LOOPBACK = "127.0.0.1 localhost\n"


class Named(Hosts):
    """Hosts that call the first of them "first"."""

    def address(self, i):
        return "first" if self.by_name else super().address(i)

    def __init__(self, names, **options):
        self.by_name = False
        super().__init__(len(names), names=names, **options)

    def __enter__(self):
        try:
            super().__enter__()
        except OSError as e:
            pytest.skip(f"hosts cannot have names of their own here: {e}")
        self.by_name = True
        return self


def test_a_host_whose_name_is_loopback_to_itself():
    """As Debian's installer writes it; and the interface that leads to the others is not its first."""
    with Named([LOOPBACK + "127.0.1.1 first\n", LOOPBACK + "10.77.0.1 first\n"], decoy=True) as hosts:
        for ranks in (
            lambda: by_hand(hosts, 2, [RANK_PROGRAM, "brief"], HOLON_RENDEZVOUS_TIMEOUT_S=30),
            lambda: launch(hosts, 2, RANK_PROGRAM, "brief", launcher=LAUNCHER, HOLON_RENDEZVOUS_TIMEOUT_S=30),
        ):
            codes, outputs = finish(ranks())
            assert codes == [0] * len(codes), outputs


@pytest.mark.parametrize("by", ["launcher", "hand"])
def test_a_name_that_is_known_later(by):
    with Named([LOOPBACK, LOOPBACK]) as hosts:

        def publish():
            time.sleep(1.5)
            for i in range(2):
                with hosts.hosts_file(i).open("a") as file:
                    file.write("10.77.0.1 first\n")

        later = threading.Thread(target=publish)
        later.start()
        if by == "hand":
            ranks = by_hand(hosts, 1, [RANK_PROGRAM, "brief"])
        else:
            ranks = launch(hosts, 1, RANK_PROGRAM, "brief", launcher=LAUNCHER)
        codes, outputs = finish(ranks)
        later.join()
    assert codes == [0, 0], outputs


@pytest.mark.one_network
def test_a_name_that_is_never_known():
    with Named([LOOPBACK, LOOPBACK]) as hosts:
        codes, outputs = finish(by_hand(hosts, 1, [RANK_PROGRAM, "brief"], HOLON_RENDEZVOUS_TIMEOUT_S=1))
    assert codes == [1, 1], outputs
    assert all("first" in text and "has no network address: " in text for text in outputs), outputs


def test_the_wrong_interface():
    """What was chosen, why, and what else there is, is in the error of the side that gives up first."""
    with Hosts(2, decoy=True) as hosts:
        ranks = by_hand(hosts, 1, [RANK_PROGRAM, "brief"], HOLON_NET_INTERFACE="docker0", HOLON_RENDEZVOUS_TIMEOUT_S=6)
        codes, outputs = finish(ranks)
        assert codes == [1, 1], outputs
        told = [text for text in outputs if "(docker0, as HOLON_NET_INTERFACE says)" in text]
        assert told and all("172.31.7.1" in text and re.search(r"eth0 10\.77\.0\.\d", text) for text in told), outputs
        ranks = by_hand(hosts, 1, [RANK_PROGRAM, "brief"], HOLON_NET_INTERFACE="eth7")
        codes, outputs = finish(ranks[:1])
        ranks[1].kill()
        finish(ranks[1:])
    assert codes == [1] and 'HOLON_NET_INTERFACE="eth7"' in outputs[0] and "docker0 172.31.7.1" in outputs[0], outputs


def test_each_listens_at_its_interface_only():
    """Neither store nor data ports are open at other addresses of a host."""
    with Hosts(2, decoy=True) as hosts:
        ranks = by_hand(hosts, 1, [RANK_PROGRAM, "hold"])
        for p in ranks:
            for line in p.stdout:
                if "ready" in line:
                    break
        text = hosts.run(0, ["cat", "/proc/net/tcp", "/proc/net/tcp6"], capture_output=True, text=True).stdout
        for p in ranks:
            p.kill()
        finish(ranks)
    found = [line.split()[1] for line in text.splitlines() if len(line.split()) > 3 and line.split()[3] == "0A"]
    assert found and all(place.startswith("01004D0A:") for place in found), found


@contextlib.contextmanager
def strangers(hosts):
    """Two programs that come to every port of the hosts."""
    program = Path(__file__).with_name("strangers.py")
    scans = [
        hosts.popen(
            i, [sys.executable, program, "--seed", i, "--token", hosts.token], stdout=subprocess.PIPE, text=True
        )
        for i in range(2)
    ]
    try:
        for scan in scans:
            assert scan.stdout.readline().strip() == "scanning"
        yield
    finally:
        for scan in scans:
            scan.terminate()
        counts = [scan.communicate()[0] for scan in scans]
    assert any(re.search(r"\d", text) for text in counts), counts


def test_strangers_between_hosts():
    with Hosts(2) as hosts, strangers(hosts):
        for _ in range(3):
            codes, outputs = finish(launch(hosts, 2, RANK_PROGRAM, "brief", launcher=LAUNCHER))
            assert codes == [0, 0], outputs


SLOW_LISTEN = """
#include <dlfcn.h>
#include <unistd.h>
extern "C" int listen(int socket, int backlog) {
  static const auto real = reinterpret_cast<int (*)(int, int)>(dlsym(RTLD_NEXT, "listen"));
  const int done = real(socket, backlog);
  usleep(60000);
  return done;
}
"""


@pytest.mark.skipif(not shutil.which("c++"), reason="there is no C++ compiler")
def test_strangers_come_as_soon_as_a_port_is_open(tmp_path):
    (tmp_path / "slow_listen.cpp").write_text(SLOW_LISTEN)
    library = tmp_path / "slow_listen.so"
    subprocess.run(["c++", "-shared", "-fPIC", "-o", library, tmp_path / "slow_listen.cpp", "-ldl"], check=True)
    with Hosts(2) as hosts, strangers(hosts):
        for _ in range(4):
            ranks = launch(hosts, 2, RANK_PROGRAM, "brief", launcher=LAUNCHER, LD_PRELOAD=library)
            codes, outputs = finish(ranks)
            assert codes == [0, 0], outputs
