"""Strangers: come to every port that some processes listen at, again and again, until the program is terminated.

    python3 strangers.py --seed 7 --mark HOLON_TEST_MARK=name --token secret
They say nothing, half a greeting, random bytes, a whole greeting with a wrong proof, and what a rank once answered to
another question (for which the token is needed here); many stay open. --mark: of processes with this in their
environment; without it of all in this network namespace.
Prints "came" when the first has, and at the end how many did, by kind.
"""

import argparse
import collections
import hashlib
import hmac
import json
import random
import re
import signal
import socket
import struct
import sys
import time
from pathlib import Path

HELLO = b"HOLONc02"


def sockets_of(mark):
    """The sockets of the processes that have the mark in their environment."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() not in (process / "environ").read_bytes().split(b"\0"):
                continue
            for fd in (process / "fd").iterdir():
                if inode := re.match(r"socket:\[(\d+)\]", str(fd.readlink())):
                    found.add(inode[1])
        except OSError:
            pass  # it has ended, or is not ours
    return found


def places(mark):
    """Where they listen: (family, address, port)."""
    sockets = sockets_of(mark) if mark else None
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        path = Path("/proc/net") / name
        for line in path.read_text().splitlines()[1:] if path.exists() else []:
            words = line.split()
            if words[3] != "0A" or (sockets is not None and words[9] not in sockets):
                continue
            address, port = words[1].split(":")
            packed = b"".join(struct.pack("=I", int(address[i : i + 8], 16)) for i in range(0, len(address), 8))
            if not any(packed):
                packed = packed[:-1] + b"\1" if family == socket.AF_INET6 else b"\x7f\0\0\1"
            yield family, socket.inet_ntop(family, packed), int(port, 16)


def recorded(chance, token):
    """A greeting, and the proof that a rank gave to somebody else's random number."""
    number, other, rank = chance.randbytes(32), chance.randbytes(32), chance.randrange(4)
    parts = [b"connects", b"store", number, other]
    text = b"".join(struct.pack("<I", len(p)) + p for p in parts) + struct.pack("<II", rank, len(token))
    return HELLO + struct.pack("<I", rank) + number + hmac.new(token.encode(), text, hashlib.sha256).digest()


def words(chance, kind, token):
    hello = HELLO + struct.pack("<I", chance.randrange(4)) + chance.randbytes(32)
    return {
        "silent": b"",
        "half": hello[: chance.randrange(1, len(hello))],
        "greeting": hello,
        "wrong proof": hello + chance.randbytes(32),
        "recorded": recorded(chance, token),
        "garbage": chance.randbytes(chance.choice([1, 44, 500, 70000])),
        "web": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    }[kind]


KINDS = ["silent", "half", "greeting", "wrong proof", "recorded", "garbage", "web"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mark", default="")
    parser.add_argument("--token", default="")
    options = parser.parse_args()
    chance, came, left = random.Random(options.seed), collections.Counter(), collections.deque()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print("scanning", flush=True)
    try:
        while True:
            for family, address, port in places(options.mark):
                for kind in chance.sample(KINDS, 3):
                    s = socket.socket(family)
                    s.settimeout(0.2)
                    try:
                        s.connect((address, port))
                        s.settimeout(0)
                        came[kind] += 1
                        if came.total() == 1:
                            print("came", flush=True)
                        s.send(words(chance, kind, options.token))
                    except OSError:
                        pass
                    left.append(s)
                    if chance.random() < 0.5 or len(left) > 400:
                        left.popleft().close()
            time.sleep(0.005)
    finally:
        print(json.dumps(came), flush=True)


if __name__ == "__main__":
    main()
