"""clang-tidy reads a build that GCC's precompiled headers are part of."""

import shutil
import subprocess

import pytest
from harness.ranks import ROOT


@pytest.mark.slow
def test_lint_reads_a_source(tmp_path):
    if not shutil.which("clang-tidy"):
        pytest.skip("clang-tidy is not installed")
    if not (ROOT / "build/dev/compile_commands.json").exists():
        pytest.skip("build/dev is not built")
    done = subprocess.run(["./dev", "lint", "holon/ops/part_metas.cpp"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
