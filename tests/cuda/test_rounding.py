"""How nvcc rounds: what is to have the CPU's bits may not fuse a product with a sum, in the sources that promise it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import cuda_resources as resources  # noqa: E402

OBJECTS = ROOT / "build/dev/holon/kernels/cuda/CMakeFiles/holon_cuda.dir"
# A product or sum of floats without its own rounding, which the assembler may fuse; and what is fused already.
FUSED = re.compile(r"^\s*(fma(\.rn)?|(mul|add|sub))(\.ftz)?\.f(32|64)\b.*", re.MULTILINE)


def assembly(source):
    tool, built = resources.find_tool("cuobjdump"), OBJECTS / f"{source}.cu.o"
    if not tool or not built.exists():
        pytest.skip("nothing is built for devices here: ./dev build --cuda")
    return subprocess.run([tool, "-ptx", str(built)], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("source", ["create", "random"])
def test_products_and_sums_are_rounded_apart(source):
    text = assembly(source)
    assert re.search(r"mul\.rn\.f(32|64)", text), "the source has products"
    assert [m[0].strip() for m in FUSED.finditer(text)] == []


def test_fused_operations_would_be_found():
    assert FUSED.search(assembly("norm"))
