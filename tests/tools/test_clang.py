"""The one header for C++ programs is right C++, and not only what GCC forgives:
clang++, where one is installed, takes it. clang-tidy reads a build that GCC's precompiled headers are part of."""

import shutil
import subprocess

import pytest
from harness.ranks import ROOT

PROGRAM = """
#include "holon/holon.h"
int main() {
  using holon::checkpoint::Value;
  Value run{{"epoch", 3}, {"rate", 0.5}, {"name", "first"}}, copy = run;
  copy = Value(Value::List{run, copy, Value()});
  return static_cast<int>(copy.size()) - 3;
}
"""


def compiled(text, tmp_path):
    source = tmp_path / "program.cpp"
    source.write_text(text)
    flags = ["-std=c++20", "-fsyntax-only", f"-I{ROOT}", f"-I{ROOT}/build/dev/generated"]
    return subprocess.run(["clang++", *flags, source], capture_output=True, text=True)


def test_clang_takes_the_public_headers(tmp_path):
    if not shutil.which("clang++"):
        pytest.skip("clang++ is not installed")
    library = "#include <concepts>\n#include <span>\n#include <variant>\nint main() {}\n"
    if done := compiled(library, tmp_path).stderr:
        pytest.skip(f"this clang++ does not take the standard library in C++20: {done[-300:]}")
    done = compiled(PROGRAM, tmp_path)
    assert done.returncode == 0, done.stderr[-8000:]


@pytest.mark.slow
def test_lint_reads_a_source(tmp_path):
    if not shutil.which("clang-tidy"):
        pytest.skip("clang-tidy is not installed")
    if not (ROOT / "build/dev/compile_commands.json").exists():
        pytest.skip("build/dev is not built")
    done = subprocess.run(["./dev", "lint", "holon/ops/part_metas.cpp"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
