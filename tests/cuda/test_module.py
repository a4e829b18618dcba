"""The backend as nvcc builds it: it loads beside libholon, says why there is no device where there is none,
and holds code for what it claims."""

import os
import struct
import subprocess
import sys

import pytest
from harness import ranks

MODULE = ranks.ROOT / "build/dev/lib/libholon_cuda.so"
pytestmark = pytest.mark.skipif(
    not MODULE.exists(), reason="no CUDA toolkit: the backend is not built for devices (./dev build --cuda)"
)


def python(code):
    return subprocess.run(
        [sys.executable, "-c", code],
        env=ranks.environment(HOLON_CUDA_LIBRARY=MODULE),
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_it_loads():
    done = python("import holon; print(holon._C.cuda_device_count()); print(holon._C.why_no_device())")
    assert done.returncode == 0, done.stderr
    count, why = done.stdout.split("\n")[:2]
    assert int(count) > 0 or why.startswith("CUDA"), why  # a symbol that is missing would be named here


def test_what_is_asked_without_a_device():
    done = python("import holon\nif not holon.cuda.is_available():\n  holon.ones(2, device='cuda')")
    assert done.returncode == 0 or "a cuda device was requested and there is none: CUDA" in done.stderr


def test_it_has_all_forms():
    """Those of the emulated module, which the tests run."""
    import holon

    if not os.environ.get("HOLON_CUDA_LIBRARY", "").endswith("emulated.so"):
        pytest.skip("the other tests run on the module itself")
    data = MODULE.read_bytes()
    assert not [name for name in holon._C.device_kernels() if name.encode() + b"\0" not in data]


def fat_binaries(data):
    """(kind, compute capability) of each piece of device code in the file; kind 1 is PTX, 2 is a binary."""
    at = data.find(struct.pack("<I", 0xBA55ED50))
    while at >= 0:
        header, size = struct.unpack_from("<HQ", data, at + 6)
        piece = at + header
        while piece < at + header + size:
            kind, _, own, length = struct.unpack_from("<HHIQ", data, piece)
            yield kind, struct.unpack_from("<I", data, piece + 28)[0]
            piece += own + length
        at = data.find(struct.pack("<I", 0xBA55ED50), at + header + size)


def test_architectures():
    found = set(fat_binaries(MODULE.read_bytes()))
    assert {(2, 80), (2, 90), (1, 90)} <= found
