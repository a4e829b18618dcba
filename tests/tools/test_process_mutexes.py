"""A mutex of the whole process that another thread holds when the process forks would be held for ever in the child:
such mutexes are ProcessMutex (holon/base/fork.h)."""

import re

from harness.ranks import ROOT

# A static object, or one that is made once and never destroyed.
# CUDA cannot be used in a child, whatever its mutexes do.
OF_THE_PROCESS = re.compile(
    r"\bstatic\b[^;(]*\bstd::(recursive_|shared_|timed_)?mutex\b|\bnew std::(recursive_|shared_|timed_)?mutex\b"
)


def offences(text):
    return [line.strip() for line in text.splitlines() if OF_THE_PROCESS.search(line)]


def test_mutexes_of_the_process_are_forks_too():
    found = {
        str(path.relative_to(ROOT)): lines
        for path in sorted((ROOT / "holon").rglob("*.[ch]*"))
        if "cuda" not in path.parts and path.name != "fork.cpp" and (lines := offences(path.read_text()))
    }
    assert not found, f"make each a ProcessMutex: {found}"


def test_the_check_finds_what_it_is_for():
    assert offences("  static std::mutex m;\n static auto* m = new std::mutex;\n static inline std::shared_mutex x;")
    assert not offences("  std::mutex mutex_;\n  static auto* m = new ProcessMutex;\n")
