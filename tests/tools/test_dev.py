"""./dev: --help of a verb helps and does nothing; lint looks at the files that it is given."""

import re
import shutil
import subprocess

import pytest
from harness.ranks import ROOT

USAGE = subprocess.run([ROOT / "dev", "help"], capture_output=True, text=True).stdout
VERBS = re.findall(r"^  ([a-z-]+)", USAGE, re.M)


def dev(folder, *words):
    return subprocess.run([folder / "dev", *words], cwd=folder, capture_output=True, text=True)


def test_usage_names_every_verb():
    script = (ROOT / "dev").read_text()
    taken = re.findall(r"^  ([a-z-]+)\)", script[script.rindex("case $verb in") :], re.M)
    assert sorted(taken) == sorted(VERBS)


@pytest.mark.parametrize("verb", [*VERBS, "help"])
@pytest.mark.parametrize("words", [["--help"], ["-h"], ["--cuda", "x", "--help"]])
def test_help_helps_and_does_nothing(verb, words, tmp_path):
    """Outside of the tree: nothing can be built there, and what is written is seen."""
    shutil.copy(ROOT / "dev", tmp_path)
    done = dev(tmp_path, verb, *words)
    assert done.returncode == 0 and not done.stderr, done.stderr
    if verb == "help":
        assert done.stdout == USAGE
    else:
        assert re.match(rf"  {verb}\b", done.stdout) and done.stdout in USAGE
        assert [v for v in VERBS if re.search(rf"^  {v}\b", done.stdout, re.M)] == [verb]
    assert [p.name for p in tmp_path.iterdir()] == ["dev"]


@pytest.mark.parametrize("words", [["no-such-verb"], ["no-such-verb", "--help"]])
def test_an_unknown_verb_is_an_error(words):
    done = dev(ROOT, *words)
    assert done.returncode == 1 and "no verb 'no-such-verb'" in done.stderr


@pytest.mark.parametrize("verb", ["lint", "format"])
def test_a_missing_file_is_an_error(verb):
    done = dev(ROOT, verb, "holon/no_such_file.cpp")
    assert done.returncode == 1 and "there is no file holon/no_such_file.cpp" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, text, said",
    [
        ("badly_formatted.cpp", "int  f( ) ;\n", "clang-format-violations"),
        ("badly_formatted.py", "x = ( 1 )\n", "badly_formatted.py"),
        ("badly_formatted.md", "```python\nx = ( 1 )\n```\n", "badly_formatted.md"),
        ("unused.py", "import os\n", "F401"),
    ],
)
def test_lint_and_format_look_at_the_files_given(name, text, said):
    """A file that git does not know: only its name leads there."""
    path = ROOT / "tests/tools" / name
    good = ROOT / "holon/base/ceil_div.h"
    path.write_text(text)
    try:
        done = dev(ROOT, "lint", path)
        assert done.returncode == 1 and said in done.stdout + done.stderr, done.stdout + done.stderr
        assert dev(ROOT, "lint", good).returncode == 0
        if "formatted" in name:
            assert dev(ROOT, "format", path).returncode == 0
            assert path.read_text() != text
            assert dev(ROOT, "lint", path).returncode == 0
    finally:
        path.unlink()
