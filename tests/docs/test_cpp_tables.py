"""The tables of docs/guides/cpp.md: every line of C++ compiles, and every mistake is the error that the table says."""

import re
import subprocess

import pytest
from harness import cpp, ranks

ROOT = ranks.ROOT
PAGE = ROOT / "docs/guides/cpp.md"
HEAD = """
#include <holon/holon.h>
#include <cstdio>
#include <functional>
#include <iostream>
#include <string>
#include <utility>
#include <vector>
namespace flow = holon;
namespace nn = flow::nn;
"""


def rows(heading):
    """The cells of the rows of the table below a heading."""
    text = PAGE.read_text().split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[c.strip() for c in line.strip("|").split(" | ")] for line in lines[2:]]


def code(cell):
    return re.findall(r"`([^`]+)`", cell)


def compiled(source, tmp_path, program=None):
    path = tmp_path / "program.cpp"
    path.write_text(HEAD + source)
    return cpp.compiled(path, program, *cpp.WARNINGS, "-Wno-unused")


def test_line_by_line(tmp_path):
    lines = [c for row in rows("Line by line") for c in code(row[-1])]
    assert len(lines) > 30
    body = "\n".join(f"  {{\n    {line};\n  }}" for line in lines)
    source = (
        """
void all(flow::Placement p, flow::Tensor w, nn::Linear net) {
  flow::Tensor x = flow::randn({2, 3}), y = flow::randn({2, 3}), z = flow::zeros({2, 3}), loss = flow::sum(w);
  std::vector<float> v(6);
"""
        + body.replace("\n    ", "\n    ")
        + "\n}\n"
    )
    done = compiled(source, tmp_path)
    assert done.returncode == 0, done.stderr


PROGRAM = """
std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const flow::Error& error) {
    return error.what();
  }
  return "no error";
}
int main() {
  flow::run_ranks(2, [](int rank) {
    flow::Tensor x = flow::ones({2, 3});
    nn::Linear net(3, 1);
    auto both = flow::placement("cpu", {0, 1});
    flow::Tensor g = flow::ones({2, 3}, {.placement = both, .sbp = flow::sbp::split(0)});
%s
  });
}
"""


def test_mistakes_raise(tmp_path):
    mistakes = [(code(r[1])[0], r[2]) for r in rows("Mistakes") if r[2] != "does not compile"]
    assert len(mistakes) + len(uncompiled()) >= 20
    calls = "\n".join(
        f'    if (std::string e = error_of([&] {{ {line}; }}); rank == 0) std::printf("%s\\n", e.c_str());'
        for line, _ in mistakes
    )
    done = compiled(PROGRAM % calls, tmp_path, tmp_path / "program")
    assert done.returncode == 0, done.stderr
    run = subprocess.run([tmp_path / "program"], env=ranks.environment(), capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    found = run.stdout.splitlines()
    assert len(found) == len(mistakes)
    for (line, expected), error in zip(mistakes, found, strict=True):
        assert expected in error, f"{line}: {error}"


def uncompiled():
    return [code(r[1])[0] for r in rows("Mistakes") if r[2] == "does not compile"]


@pytest.mark.parametrize("line", uncompiled())
def test_mistakes_that_do_not_compile(line, tmp_path):
    around = "void f(flow::Tensor x, nn::Linear net) {\n  %s;\n}\n"
    assert compiled(around % "x.shape()", tmp_path).returncode == 0
    done = compiled(around % line, tmp_path)
    assert done.returncode != 0, f"{line} compiles"
    assert "error:" in done.stderr
