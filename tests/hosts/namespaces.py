"""Several hosts on one machine: network namespaces that are joined by a bridge, made and removed again.

    with Hosts(2) as hosts:
        hosts.run(0, ["ip", "address"])           # waits; CompletedProcess
        process = hosts.popen(1, ["program"])     # does not
        hosts.cut(1)                              # pulls the plug
All that runs on them knows one token. As a program: `python3 namespaces.py 2 -- command ...` runs the command on each
of two hosts with NODE_RANK and NNODES set, and ends with the first exit status that is not 0. Needs root (CAP_NET_ADMIN
and CAP_SYS_ADMIN) and iproute2.
"""

import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path


class Hosts:
    """n namespaces with the addresses 10.77.0.1 to 10.77.0.n, or fd77::1 to fd77::n and nothing else. slow: (delay in
    seconds, bytes per second) of the cable between two hosts, each way. names: the hosts' own /etc/hosts, one text for
    each. decoy: an interface docker0 before the one that leads to the others. token: None leaves it to the commands."""

    def __init__(self, n, slow=None, ipv6=False, names=None, decoy=False, token=secrets.token_hex):
        self.n, self.slow, self.relay = n, slow, None
        self.ipv6, self.names, self.decoy = ipv6, names, decoy
        self.token = token and token()
        self.prefix = f"holon{os.getpid()}"
        self.switch = f"{self.prefix}-sw"

    def name(self, i):
        return f"{self.prefix}-{i}"

    def address(self, i):
        return f"fd77::{i + 1}" if self.ipv6 else f"10.77.0.{i + 1}"

    def hosts_file(self, i):
        """What the host has as /etc/hosts, if names were given."""
        return Path("/etc/netns") / self.name(i) / "hosts"

    @staticmethod
    def _ip(*words):
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)

    def __enter__(self):
        try:
            self._ip("netns", "add", self.switch)
            if not self.slow:
                self._ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
                self._ip("-n", self.switch, "link", "set", "bridge", "up")
            for i in range(self.n):
                ns = self.name(i)
                self._ip("netns", "add", ns)
                if self.names:
                    self.hosts_file(i).parent.mkdir(parents=True)
                    self.hosts_file(i).write_text(self.names[i])
                if self.decoy:
                    self._ip("-n", ns, "link", "add", "docker0", "type", "bridge")
                    self._ip("-n", ns, "address", "add", "172.31.7.1/24", "dev", "docker0")
                    self._ip("-n", ns, "link", "set", "docker0", "up")
                self._ip(
                    "link", "add", "eth0", "netns", ns, "type", "veth", "peer", "name", f"port{i}", "netns", self.switch
                )
                self._ip(
                    "-n", self.switch, "link", "set", f"port{i}", *([] if self.slow else ["master", "bridge"]), "up"
                )
                plain = (
                    [f"{self.address(i)}/64", "dev", "eth0", "nodad"]
                    if self.ipv6
                    else [f"{self.address(i)}/24", "dev", "eth0"]
                )
                self._ip("-n", ns, "address", "add", *plain)
                self._ip("-n", ns, "link", "set", "eth0", "up")
                self._ip("-n", ns, "link", "set", "lo", "up")
            if self.slow:
                self._slow_cable()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _slow_cable(self):
        assert self.n == 2
        relay = [sys.executable, str(Path(__file__).with_name("relay.py"))]
        for i in range(2):
            self.run(i, [*relay, "--no-offload", "eth0"], check=True)
        command = [
            "ip",
            "netns",
            "exec",
            self.switch,
            *relay,
            "port0",
            "port1",
            "--delay",
            str(self.slow[0]),
            "--rate",
            str(self.slow[1]),
        ]
        self.relay = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.relay.stdout.readline().strip() == "relaying"

    def __exit__(self, *_):
        if self.relay:
            self.relay.kill()
            self.relay.wait()
            self.relay.stdout.close()
        for ns in [*(self.name(i) for i in range(self.n)), self.switch]:
            subprocess.run(["ip", "netns", "delete", ns], capture_output=True)
        for i in range(self.n if self.names else 0):
            shutil.rmtree(self.hosts_file(i).parent, ignore_errors=True)

    def command(self, i, command):
        token = ["env", f"HOLON_STORE_TOKEN={self.token}"] if self.token else []
        return ["ip", "netns", "exec", self.name(i), *token, *map(str, command)]

    def run(self, i, command, **options):
        return subprocess.run(self.command(i, command), **options)

    def popen(self, i, command, **options):
        return subprocess.Popen(self.command(i, command), **options)

    def processes(self):
        """The pids of everything that runs on the hosts."""
        listed = [
            subprocess.run(["ip", "netns", "pids", self.name(i)], capture_output=True, text=True).stdout
            for i in range(self.n)
        ]
        return [int(pid) for pid in " ".join(listed).split()]

    def cut(self, i):
        """Takes the cable of host i out of the switch: nothing arrives, and nobody is told."""
        self._ip("-n", self.switch, "link", "set", f"port{i}", "down")

    def mend(self, i):
        self._ip("-n", self.switch, "link", "set", f"port{i}", "up")

    def lose(self, a, b):
        """From now on what host a sends to host b gets lost; what b sends to a arrives."""
        self._ip(
            *("-n", self.name(a), "neighbour", "replace", self.address(b)),
            *("lladdr", "02:00:00:00:00:01", "dev", "eth0", "nud", "permanent"),
        )

    def find(self, a, b):
        self._ip("-n", self.name(a), "neighbour", "delete", self.address(b), "dev", "eth0")


def missing():
    """Why hosts cannot be made here; None if they can."""
    if not shutil.which("ip"):
        return "needs the program ip (package iproute2)"
    try:
        with Hosts(1) as hosts:
            hosts.run(0, ["true"], check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as e:
        return f"network namespaces cannot be made: {' '.join(e.cmd)}: {e.stderr.strip()}"
    return None


def main():
    count, command = int(sys.argv[1]), sys.argv[sys.argv.index("--") + 1 :]
    with Hosts(count) as hosts:
        running = [
            hosts.popen(
                i,
                command,
                env={**os.environ, "NODE_RANK": str(i), "NNODES": str(count), "MASTER_ADDR": hosts.address(0)},
            )
            for i in range(count)
        ]
        return max(p.wait() for p in running)


if __name__ == "__main__":
    sys.exit(main())
