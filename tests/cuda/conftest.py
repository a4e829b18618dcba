"""Tests of the CUDA backend: on a device where there is one and the backend is built,
else on the emulator (emulator/emulator.h).

HOLON_TEST_CUDA=device or emulator chooses by hand."""

import contextlib
import ctypes
import os
import shutil
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EMULATED = ROOT / "build/dev/lib/libholon_cuda_emulated.so"


def _choose():
    wanted = os.environ.get("HOLON_TEST_CUDA")
    if os.environ.get("HOLON_CUDA_LIBRARY"):
        return wanted or "given"
    if wanted != "emulator" and (wanted == "device" or os.path.exists("/dev/nvidiactl")):
        return "device"
    os.environ["HOLON_CUDA_LIBRARY"] = str(EMULATED)
    return "emulator"


# Before holon is asked for its first device.
CHOSEN = _choose()
EMULATED_RUN = os.environ.get("HOLON_CUDA_LIBRARY", "").endswith("emulated.so")
# Where the processes of one ./dev test list their launches.
SHARED = os.environ.get("HOLON_TEST_LAUNCHES")
LAUNCHES = Path(SHARED or tempfile.mkdtemp(prefix="holon-launches-")) / f"launches-{os.getpid()}"
# Kernels that are compiled while programs run: once for all processes of this run.
os.environ.setdefault("EMULATED_KERNELS", str(LAUNCHES.parent / "kernels"))


def pytest_sessionfinish():
    if not SHARED:
        shutil.rmtree(LAUNCHES.parent, ignore_errors=True)


def pytest_collection_modifyitems(items):
    import holon

    if holon.cuda.is_available():
        items.sort(
            key=lambda item: Path(item.fspath).name == "test_resources.py"
        )  # last: it judges what the others launch
        if EMULATED_RUN:
            ctypes.CDLL(os.environ["HOLON_CUDA_LIBRARY"]).emulated_launches(str(LAUNCHES).encode())
        return
    skip = pytest.mark.skip(reason=f"no cuda device and no emulator: {holon._C.why_no_device()}")
    for item in items:
        if Path(item.fspath).parent == Path(__file__).parent:
            item.add_marker(skip)


# These compare kernels' values. That no host code touches what lies on a device is seen by the others,
# which call the same functions.
OPEN = {
    f"test_{name}.py"
    for name in (
        "attention",
        "conv",
        "copy",
        "dnn",
        "elementwise",
        "fused",
        "index",
        "loss",
        "matmul",
        "norm",
        "optim",
        "pool",
        "random",
        "reduce",
        "rnn",
        "softmax",
        "sort",
    )
}


@pytest.fixture(scope="module", autouse=True)
def memory_of_devices(request):
    if not EMULATED_RUN:
        yield
        return
    strict = ctypes.CDLL(os.environ["HOLON_CUDA_LIBRARY"]).emulated_strict
    strict(int(Path(request.fspath).name not in OPEN))
    yield
    strict(1)


@pytest.fixture
def own_kernels():
    """Where a library would do it, too."""
    import holon

    holon.backends.cudnn.enabled = False
    yield
    holon.backends.cudnn.enabled = True


@pytest.fixture
def launches():
    """Where the launches of this run are listed, as EMULATED_LAUNCHES does, a file for each process;
    this one's list ends here."""
    if not EMULATED_RUN:
        pytest.skip("launches are listed by the emulator")
    ctypes.CDLL(os.environ["HOLON_CUDA_LIBRARY"]).emulated_launches(b"")
    return sorted(LAUNCHES.parent.glob("launches-*"))


@pytest.fixture
def native():
    """with native(): no kernel function may run on host copies inside."""
    import holon

    @contextlib.contextmanager
    def check():
        before = dict(holon._C.host_runs())
        yield
        staged = {name: n - before.get(name, 0) for name, n in holon._C.host_runs().items() if n > before.get(name, 0)}
        assert not staged, f"ran on host copies: {staged}"

    return check
