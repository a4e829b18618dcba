"""A slow cable: carries frames between two network interfaces, each way with a delay and at most a rate.

    python3 relay.py IFACE IFACE --delay 0.02 --rate 20e6      # seconds, bytes per second

Not every kernel has `tc netem`. Ends with SIGTERM; prints "relaying" when it is ready. `relay.py --no-offload IFACE`
makes the kernel finish frames of an interface (checksums, segments) before it hands them out, which a relay needs.
"""

import argparse
import ctypes
import fcntl
import heapq
import select
import socket
import struct
import sys
import time

SIOCETHTOOL = 0x8946
SET_TX_CHECKSUM, SET_SCATTER, SET_TSO, SET_GSO, SET_GRO = 0x17, 0x19, 0x1F, 0x24, 0x2C


def no_offload(name):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for command in (SET_GRO, SET_GSO, SET_TSO, SET_SCATTER, SET_TX_CHECKSUM):
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))
            try:
                fcntl.ioctl(s, SIOCETHTOOL, struct.pack("16sP", name.encode(), ctypes.addressof(value)))
            except OSError as e:
                print(f"{name}: offload {command:#x}: {e}", file=sys.stderr)


class Way:
    """One direction: frames wait for their turn by rate, and then for the delay."""

    def __init__(self, source, target, delay, rate):
        self.source, self.target, self.delay, self.rate = source, target, delay, rate
        self.free = 0.0

    def due(self, frame, now):
        self.free = max(self.free, now) + (len(frame) / self.rate if self.rate else 0)
        return self.free + self.delay


def relay(a, b, delay, rate):
    sockets = []
    for name in (a, b):
        s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUFFORCE if hasattr(socket, "SO_RCVBUFFORCE") else 33, 64 << 20)
        s.bind((name, 0))
        s.setblocking(False)
        sockets.append(s)
    ways = {sockets[0]: Way(sockets[0], sockets[1], delay, rate), sockets[1]: Way(sockets[1], sockets[0], delay, rate)}
    waiting, count = [], 0
    print("relaying", flush=True)
    while True:
        timeout = max(0, waiting[0][0] - time.monotonic()) if waiting else None
        for s in select.select(sockets, [], [], timeout)[0]:
            while True:
                try:
                    frame, address = s.recvfrom(1 << 17)
                except BlockingIOError:
                    break
                if address[2] == socket.PACKET_OUTGOING:
                    continue
                count += 1
                heapq.heappush(waiting, (ways[s].due(frame, time.monotonic()), count, s, frame))
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, s, frame = heapq.heappop(waiting)
            try:
                ways[s].target.send(frame)
            except OSError:
                pass  # a frame is lost, as on any cable


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("interfaces", nargs="+")
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--no-offload", action="store_true")
    options = parser.parse_args()
    if options.no_offload:
        for interface in options.interfaces:
            no_offload(interface)
    else:
        relay(*options.interfaces, options.delay, options.rate)
