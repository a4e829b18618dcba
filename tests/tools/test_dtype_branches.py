"""Code that runs for an element type and does nothing for others leaves memory as it was.

bfloat16 and float16 are classes, for which std::is_floating_point_v is false: a branch on it that has no else skips
them without a word. `visit_floating` calls with all four types, and DTypeOf<T>::Compute is the one to compute in.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BRANCH = re.compile(r"if constexpr \((?:!?\s*)std::is_floating_point_v<(?P<type>[^()]*?)>\)")


def end_of_statement(text, at):
    """The place behind the statement that begins at `at`: a block, or what ends in a semicolon."""
    depth = 0
    for i in range(at, len(text)):
        if text[i] in "({[":
            depth += 1
        elif text[i] in ")}]":
            depth -= 1
            if depth == 0 and text[i] == "}" and text[at:].lstrip()[0] == "{":
                return i + 1
        elif text[i] == ";" and depth == 0:
            return i + 1
    return len(text)


def one_sided(text):
    """The lines of branches on a stored type that have no else."""
    for m in BRANCH.finditer(text):
        if "Compute" in m["type"]:
            continue
        rest = text[end_of_statement(text, m.end()) :].lstrip()
        if not rest.startswith("else"):
            yield text.count("\n", 0, m.start()) + 1


def test_branches_are_found():
    bad = """
      if constexpr (std::is_floating_point_v<T>) {
        for (int i = 0; i < n; ++i) { out[i] = x[i]; }
      }
      if constexpr (std::is_floating_point_v<T>) out[0] = f(x, {1; });
    """
    good = """
      if constexpr (std::is_floating_point_v<T>) {
        run(x);
      } else {
        run_integer(x);
      }
      if constexpr (std::is_floating_point_v<Compute<typename decltype(tag)::type>>) run();
      if constexpr (std::is_floating_point_v<V>)
        return lowest(f(1));
      else
        return 0;
    """
    assert list(one_sided(bad)) == [2, 5] and list(one_sided(good)) == []


@pytest.mark.parametrize("folder", ["holon", "docs", "examples", "tests", "python/src", "benchmarks"])
def test_no_branch_forgets_the_types_of_two_bytes(folder):
    wrong = []
    for path in sorted((ROOT / folder).rglob("*")):
        # This test's counterpart shows that such a kernel is found when it runs.
        if path.suffix not in (".cpp", ".h", ".cu", ".md") or path.name == "unwritten_test.cpp":
            continue
        wrong += [f"{path.relative_to(ROOT)}:{line}" for line in one_sided(path.read_text())]
    assert wrong == [], "use visit_floating(), or say in an else what happens for other types"
