"""Every code block of the documents runs, and prints what the page says.

python: runs, with as many ranks as its fence says (```python ranks=2), by the launcher (those with `cuda` in
tests/cuda, those with `toy` in tests/device), beside the page's blocks that are files (```cpp file=NAME); a text
fence after it is what it prints. cpp: is compiled, and runs likewise if a text fence follows; a part of a file that
the build compiles (```cpp from=PATH) is compared with it in tests/device. Other languages (bash, cmake) are for the
reader. `no-run` on a fence needs a reason in the page.
"""

import subprocess

import pytest
from harness import cpp, docs, ranks

ROOT = ranks.ROOT
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def collect(language):
    """As pytest's parameters. Blocks for devices are run by tests/cuda and tests/device."""
    found = [b for b in docs.of_pages(PAGES, language) if not b.options.keys() & {"cuda", "toy", "from"}]
    return [pytest.param(b, id=f"{b.page.relative_to(ROOT)}:{b.line}") for b in found]


@pytest.mark.parametrize("block", collect("python"))
def test_python(block, tmp_path):
    docs.run_python(block, tmp_path)


@pytest.mark.parametrize("block", collect("cpp"))
def test_cpp(block, tmp_path):
    text = block.text
    if "int main" not in text:
        # A fragment of a page: its includes stay outside, the rest goes into a function.
        lines = text.splitlines()
        head = [x for x in lines if x.startswith(("#include", "namespace flow"))]
        body = [x for x in lines if x not in head]
        if not any(x.startswith("HOLON_") for x in body):
            body = ["void block() {", *body, "}"]
        text = "\n".join(
            ["#include <holon/holon.h>", "namespace flow = holon;", "using namespace holon;", *head, *body]
        )
    source = tmp_path / "block.cpp"
    source.write_text(text)
    program = None if block.expected is None else tmp_path / "block"
    done = cpp.compiled(source, program, "-fopenmp")
    assert done.returncode == 0, done.stderr
    if program is None:
        return
    n = int(block.options.get("ranks", 1))
    start = [cpp.LAUNCHER, "--nproc_per_node", n] if n > 1 else []
    done = subprocess.run(
        [str(c) for c in [*start, program]],
        env=ranks.environment(),
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    why = docs.differs(block.expected, done.stdout, ordered=n == 1)
    assert why is None, why


def test_there_are_blocks():
    assert collect("python"), "no page has a python block: the fences are not found"


@pytest.mark.parametrize(
    "expected, printed, ordered, same",
    [
        ("a\nb\n", "a\nb\n", True, True),
        ("a\nb\n", "b\na\n", True, False),
        ("a\nb\n", "b\na\n", False, True),
        ("a\n", "a\nb\n", False, False),
        ("a\nb\n", "a\n", False, False),
        ("x = ...\n", "x = 3.25\n", True, True),
        ("x = ...\n", "y = 3.25\n", True, False),
        ("a\n...\nz\n", "a\nb\nc\nz\n", True, True),
        ("a\n...\nz\n", "a\nz\n", True, True),
        ("a\n...\nz\n", "b\nz\n", True, False),
        ("...\nz\n", "b\nz\n", True, True),
        ("a\n...\n", "a\nb\nc\n", True, True),
        ("[1. 2.]\n", "[1. 2.]\n", True, True),
        ("[1. 2.]\n", "[1x 2.]\n", True, False),
        ("rank ...\nrank 0\n", "rank 0\nrank 1\n", False, True),
    ],
)
def test_comparison(expected, printed, ordered, same):
    assert (docs.differs(expected, printed, ordered) is None) == same


def test_an_open_fence_is_an_error():
    with pytest.raises(ValueError, match="line 1"):
        docs.blocks("```python\nprint(1)\n")
