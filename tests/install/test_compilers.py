"""Users' code compiles without a warning by every compiler that is found, in C++20 and in C++23: the headers for users,
each alone, and programs."""

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.ranks import ROOT

GENERATED = ROOT / "build/dev/generated"
# GCC 12 is the oldest that takes Holon's headers, and clang 14. Debian has clang 16 and 19, too.
COMPILERS = ["g++-12", "g++-13", "g++-14", "clang++-14", "clang++-16", "clang++-19"]
STANDARDS = ["c++20", "c++2b"]
# For users, in docs/guides/cpp.md. Internal ones are compiled by what includes them.
HEADERS = sorted(p.name for p in (ROOT / "holon").glob("*.h")) + ["ops.h"]

CHECKPOINT = """
#include <holon/holon.h>
int main() {
  using holon::checkpoint::Value;
  Value run{{"epoch", 3}, {"rate", 0.5}, {"name", "first"}}, copy = run;
  copy = Value(Value::List{run, copy, Value()});
  return static_cast<int>(copy.size()) - 3;
}
"""
OP = """
#include <holon/dispatch/dispatch.h>
#include <holon/kernels/copy.h>
HOLON_OP(half_of, "half_of(Tensor x) -> Tensor")
    .doc("x / 2.")
    .infer([](holon::Infer& c) { c.out(c.shape(0), c.dtype_of(0)); })
    .rule_elementwise()
    .kernel([](holon::KernelCall& c) {
      if (c.in(0).numel() < 0) holon::fail_value("{}: {} elements.", "half_of", c.in(0).numel());
      holon::kernels::copy(c.in(0), c.out());
    });
"""
SHORT = """
#include <holon/tensor.h>
holon::Tensor twice(const holon::Tensor& x) { return 2 * x; }
int main() { return holon::world_size() - 1; }
"""


def sources():
    found = {f"#include <holon/{h}>": f"#include <holon/{h}>\n" for h in HEADERS}
    found |= {"a checkpoint": CHECKPOINT, "an op": OP, "a short program": SHORT}
    for name in (
        "examples/cpp/mlp.cpp",
        "examples/cpp/cnn.cpp",
        "examples/cpp/mixed_graph.cpp",
        "examples/gpt/gpt.cpp",
    ):
        found[name] = f'#include "{ROOT / name}"\n'
    found["tests/install/consumer"] = (ROOT / "tests/install/consumer/main.cpp").read_text()
    return found


def compiled(compiler, standard, text):
    flags = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", f"-I{ROOT}", f"-I{GENERATED}"]
    command = [compiler, f"-std={standard}", *flags, "-x", "c++", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("standard", STANDARDS)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_users_code_compiles(compiler, standard):
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    if not (GENERATED / "holon/ops.h").exists():
        pytest.skip("build/dev is not there: ./dev build")
    programs = sources()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done = dict(zip(programs, pool.map(lambda text: compiled(compiler, standard, text), programs.values())))
    failed = {name: d.stderr[:3000] for name, d in done.items() if d.returncode}
    assert not failed, "\n".join(f"{name}:\n{text}" for name, text in failed.items())


def test_the_guide_has_every_header():
    guide = (ROOT / "docs/guides/cpp.md").read_text()
    table = guide[guide.index("## Headers and compilers") : guide.index("## Further")]
    told = {line.split("`")[1].removeprefix("holon/") for line in table.splitlines() if line.startswith("| `holon/")}
    assert told == set(HEADERS) - {"holon.h"}


def test_a_warning_is_seen():
    done = compiled("c++", "c++20", "#include <holon/tensor.h>\nint f(int unused) { return 0; }\n")
    assert done.returncode != 0 and "unused" in done.stderr
    assert compiled("c++", "c++20", "#include <holon/tensor.h>\nint f(int used) { return used; }\n").returncode == 0
