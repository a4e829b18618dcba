"""Worker processes of a loader: each has a socket to the loader's process,
gets lists of indices there and answers with batches.

A batch is in a memfd, whose descriptor is passed on: its arrays are not copied on the way, nothing has a name in a
file system, and a small /dev/shm does not matter. A worker that ends, however, ends its socket, which the loader sees
at once; and the other way round. A worker has one thread, and the number of its rank, but cannot communicate.
"""

import mmap
import os
import pickle
import random
import signal
import socket
import struct
import traceback
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import _C
from .collate import map_batch

BATCH, ERROR, END = range(3)
_HEADER = struct.Struct("<BQQQ")  # kind, bytes of the pickle, number of buffers, bytes in all
_LENGTH = struct.Struct("<Q")
# The loaders' ends of all sockets of this process: a forked worker must not hold those of others open.
parent_ends: weakref.WeakSet = weakref.WeakSet()
_info = None


@dataclass(frozen=True)
class WorkerInfo:
    """What get_worker_info() returns in a worker."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


def get_worker_info():
    """Returns this worker's id, num_workers, seed and dataset; None outside workers."""
    return _info


class _Packed:
    """A tensor on its way: an array, which pickle leaves where it is."""

    def __init__(self, array):
        self.array = array


def _pack(x):
    if isinstance(x, _C.Tensor) and x.is_local and x.dtype not in (_C.bfloat16,):
        return _Packed(np.ascontiguousarray(x.detach().numpy()).reshape(tuple(x.shape)))
    return x


def _unpack(x):
    return _C.from_numpy(x.array) if isinstance(x, _Packed) else x


def send_message(sock, message):
    data = pickle.dumps(message, protocol=5)
    sock.sendall(_LENGTH.pack(len(data)) + data)


def _receive_exactly(sock, n):
    parts = bytearray()
    while len(parts) < n:
        part = sock.recv(n - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def receive_message(sock):
    return pickle.loads(_receive_exactly(sock, _LENGTH.unpack(_receive_exactly(sock, _LENGTH.size))[0]))


def send_result(sock, kind, value):
    buffers = []
    data = pickle.dumps(map_batch(_pack, value), protocol=5, buffer_callback=buffers.append)
    views = [b.raw() for b in buffers]
    offset, table = len(data) + 16 * len(views), []
    for v in views:
        offset = -(-offset // 64) * 64
        table.append((offset, v.nbytes))
        offset += v.nbytes
    fd = os.memfd_create("holon-batch", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, max(offset, 1))
        with mmap.mmap(fd, max(offset, 1)) as memory:
            memory[: len(data)] = data
            for i, ((start, size), v) in enumerate(zip(table, views)):
                struct.pack_into("<QQ", memory, len(data) + 16 * i, start, size)
                memory[start : start + size] = v
        socket.send_fds(sock, [_HEADER.pack(kind, len(data), len(views), offset)], [fd])
    finally:
        os.close(fd)


def receive_result(sock):
    """Returns (kind, value). Raises EOFError if the worker is gone."""
    header, fds, _, _ = socket.recv_fds(sock, _HEADER.size, 1)
    if not header:
        raise EOFError
    try:
        header += _receive_exactly(sock, _HEADER.size - len(header))
        kind, size, count, total = _HEADER.unpack(header)
        # Private: the worker is done with it, and a process that is forked from this one must not write into its
        # batches.
        memory = memoryview(mmap.mmap(fds[0], max(total, 1), flags=mmap.MAP_PRIVATE))
    finally:
        for fd in fds:
            os.close(fd)
    table = [struct.unpack_from("<QQ", memory, size + 16 * i) for i in range(count)]
    return kind, map_batch(_unpack, pickle.loads(memory[:size], buffers=[memory[a : a + n] for a, n in table]))


class Failure:
    """An exception of a worker, to be raised in the loader's process."""

    def __init__(self, error, worker):
        self.kind = type(error)
        self.text = "".join(traceback.format_exception(error)).rstrip()
        self.worker = worker

    def __getstate__(self):
        try:
            pickle.dumps(self.kind)
        except Exception:
            self.kind = RuntimeError  # a class that is known in the worker only
        return self.__dict__

    def throw(self):
        message = f"Caught {self.kind.__name__} in DataLoader worker process {self.worker}.\nOriginal {self.text}"
        if self.kind is KeyError:  # whose text would be quoted
            raise type("KeyError", (KeyError,), {"__str__": lambda self: self.args[0]})(message)
        try:
            error = self.kind(message)
        except Exception:
            raise RuntimeError(message) from None
        raise error


def work(sock, dataset, fetch, init, worker, num_workers, seed, forked):
    """The worker's process: answers each message until the loader is gone."""
    global _info
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if forked:
        for end in list(parent_ends):
            end.close()
    _C.set_num_threads(1)
    _info = WorkerInfo(worker, num_workers, seed, dataset)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    _C.manual_seed(seed)
    failure, iterator = None, None
    try:
        if init is not None:
            init(worker)
    except Exception as e:
        failure = Failure(e, worker)
    try:
        while True:
            task = receive_message(sock)
            if task == "epoch":
                iterator = None
                continue
            try:
                if failure is not None:
                    send_result(sock, ERROR, failure)
                    continue
                if iterator is None and fetch.iterable:
                    iterator = iter(dataset)
                send_result(sock, BATCH, fetch(dataset, iterator, task))
            except StopIteration:
                send_result(sock, END, None)
            except (BrokenPipeError, ConnectionResetError):
                return
            except Exception as e:
                send_result(sock, ERROR, Failure(e, worker))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the loader is gone
