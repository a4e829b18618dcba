"""Ports for worlds that are started by hand."""

import fcntl
import os
import socket
from pathlib import Path

FIRST, END = 20_000, 29_000  # below what systems choose from by themselves, and torchrun's 29500
LAST_GIVEN = Path(f"/tmp/holon-test-port-{os.getuid()}")  # tests/cpp/comm/processes.cpp reads and writes it as well


def is_free(port):
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port():
    """A port that nobody uses, and that nobody else gets before the caller listens at it: one that the system chooses
    (bind to 0) would be chosen again for any other program meanwhile. Tests that run side by side take turns."""
    with open(os.open(LAST_GIVEN, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        port = int(file.read() or FIRST)
        for _ in range(END - FIRST):
            port = port + 1 if FIRST <= port < END - 1 else FIRST
            if is_free(port):
                file.seek(0)
                file.write(str(port))  # always of five digits
                return port
    raise RuntimeError(f"no port from {FIRST} to {END - 1} is free")
