"""The kernels as nvcc compiled them: what they need of a multiprocessor, and whether it can run what is launched."""

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import holon as flow

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import cuda_resources as resources  # noqa: E402

F = flow.nn.functional
# Kernels whose time counts in training. None of them may keep anything in local memory, but for these bytes.
HOT = re.compile(
    r"attention::(forward|backward|add_splits|row_products)|copy_packs|fill_packs|take_rows|add_entries|"
    r"(norm_rows\w*|softmax_rows\w*|cross_entropy_rows\w*|sum_parts)<float|"
    r"update_tensors<.*Adam|elementwise<ops::\w+, float"
)
EXCEPTIONS = {
    # An address or two that are stored before the loop over the tiles, and loaded in each turn.
    r"attention::forward<B?Float16, 128, 2>|attention::backward<B?Float16, 128, false>": 8,
    # Two blocks of 512 threads leave them 64 registers; what is spilled is used once in a row, outside of its loops.
    r"softmax_rows<float, 16, true>|cross_entropy_rows_backward<float, false>": 8,
    r"cross_entropy_rows<float, (true|false)>": 16,
    # Sums for the weights' gradients stay in registers for all rows, too.
    r"norm_rows_backward<float, 8, (true|false), false>|norm_rows_backward<float, 8, true, true>": 8,
    r"norm_rows_backward<float, 8, false, true>": 32,
    # An array of CUDA's own sinf, for large arguments.
    r"elementwise<ops::(Sin|Cos|Tan|SinBackward|CosBackward), float, \d>": 64,
    # Polynomials of erf, of its inverse and of powers.
    r"elementwise<ops::(GeluBackward|Pow), float, 2>": 32,
    r"elementwise<ops::Erfinv, float, 1>": 40,
    # Both branches of a few elements.
    r"elementwise<ops::(Huber|SmoothL1), float, 2>": 8,
}
# Shared memory of a block where code of the architecture runs: 8.6 and 8.9 run that of 8.0.
SMALL, ROOM = 99 * 1024, {80: 163 * 1024, 90: 227 * 1024}


@pytest.fixture(scope="module")
def kernels():
    if not resources.MODULE.exists():
        pytest.skip("no CUDA toolkit: the backend is not built for devices (./dev build --cuda)")
    if not resources.find_tool("cuobjdump"):
        pytest.skip("there is no cuobjdump: it is a part of the CUDA toolkit, and nvidia-cuda-cuobjdump on PyPI")
    return resources.kernels()


def test_hot_kernels_stay_in_registers(kernels):
    if resources.compiler_version()[0] != 13:
        pytest.skip("the exceptions are what CUDA 13's nvcc does")
    hot = [k for k in kernels if HOT.search(k.name)]
    assert {k.arch for k in hot} == {80, 90} and len(hot) > 100
    allowed = {k: next((n for pattern, n in EXCEPTIONS.items() if re.fullmatch(pattern, k.name)), 0) for k in hot}
    assert not [f"{k.name} for {k.arch}: {k.local} bytes" for k in hot if k.local > allowed[k]]


def test_kernels_bound_by_memory_fill_a_multiprocessor(kernels):
    """What is under way at once must cover memory's latency: about 20 KB for each multiprocessor of an H100. Threads of
    element-wise kernels have 32 bytes of two-byte elements under way, those of rows' kernels as much of float32, and
    those of copies 64 but where elements get wider."""
    for k in kernels:
        if re.search(r"elementwise<ops::\w+, float, [12]>|take_rows|update_tensors<.*Adam<float", k.name):
            assert k.resident(256) >= 768, k
        if re.search(r"(copy|fill)_packs", k.name):
            assert k.resident(256) >= 512, k
        if re.search(r"(norm_rows|softmax_rows\w*|cross_entropy_rows\w*)<float", k.name):
            assert k.resident(512) >= 1024, k


def some_launches():
    """So that there are some where this file runs alone."""
    for d in (64, 128, 256):
        for dtype in (flow.float32, flow.bfloat16):
            x = flow.randn(1, 1, 20, d, device="cuda").to(dtype).requires_grad_()
            F.scaled_dot_product_attention(x, x, x).sum().backward()
    x = flow.randn(6, 768, device="cuda").requires_grad_()
    F.layer_norm(flow.softmax(x, -1), (768,)).sum().backward()
    flow.cuda.synchronize()


def test_launches_can_run(kernels, launches):
    """Every launch of the tests before this one, by the registers and the shared memory of its kernel."""
    module = os.environ["HOLON_CUDA_LIBRARY"]
    again = launches[0].with_name("again")
    lib = ctypes.CDLL(module)
    lib.emulated_launches(str(again).encode())
    some_launches()
    lib.emulated_launches(b"")
    symbols = {}
    listed = subprocess.run(["nm", "-C", module], capture_output=True, text=True, check=True).stdout
    for line in listed.split("\n"):
        address, _, name = line.partition(" ")
        if address and name[:2] in ("t ", "T ", "W ", "V ", "u "):
            symbols.setdefault(int(address, 16), resources.short_name(name[2:]))
    lines = [line.split() for path in (*launches, again) for line in path.read_text().splitlines()]
    seen = {(address, threads, dynamic) for address, _, threads, dynamic in lines}
    compiled = {}
    for k in kernels:
        compiled.setdefault(k.name, {})[k.arch] = k
    checked, unknown = 0, set()
    for address, threads, dynamic in seen:
        name, threads, dynamic = symbols[int(address, 16)], int(threads), int(dynamic)
        if name not in compiled:
            unknown.add(name)
            continue
        assert threads <= 1024, name
        for arch, k in compiled[name].items():
            assert -(-k.registers // 8) * 8 * -(-threads // 32) * 32 <= resources.REGISTERS, (k, threads)
            assert k.shared + dynamic <= ROOM[arch], (k, dynamic)
            small = not name.startswith("attention::backward") or name.endswith("true>")
            assert not small or k.shared + dynamic <= SMALL, (k, dynamic)
            checked += 1
    assert not unknown, f"not in {resources.MODULE.name}; is it older than its sources? (./dev build --cuda)"
    assert checked >= 2 * 15


@pytest.mark.parametrize("d", [64, 128, 256])
def test_matrices_lie_in_all_banks(d):
    """What attention loads for tensor cores: the eight rows of a matrix lie in banks of their own."""
    if not os.environ.get("HOLON_CUDA_LIBRARY", "").endswith("emulated.so"):
        pytest.skip("the emulator counts them")
    count = ctypes.CDLL(os.environ["HOLON_CUDA_LIBRARY"]).emulated_matrices
    loaded, in_conflict = ctypes.c_int64(), ctypes.c_int64()
    count(ctypes.byref(loaded), ctypes.byref(in_conflict))
    x = flow.randn(1, 8, 80, d, device="cuda").to(flow.bfloat16).requires_grad_()
    F.scaled_dot_product_attention(x, x, x, is_causal=True).sum().backward()
    flow.cuda.synchronize()
    count(ctypes.byref(loaded), ctypes.byref(in_conflict))
    assert loaded.value > 1000 and in_conflict.value == 0
