"""`cmake --install` makes something that a project outside of the tree finds, compiles against and runs."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from harness import docs
from harness.ranks import ROOT, free_port

sys.path.insert(0, str(ROOT / "tools"))

import check_headers  # noqa: E402

NOTHING = re.compile("(?!)")
BUILD = ROOT / "build/dev"


def sh(*command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    if not (BUILD / "CMakeCache.txt").exists():
        pytest.skip("build/dev is not there: ./dev build")
    built, prefix = tmp_path_factory.mktemp("built"), tmp_path_factory.mktemp("prefix")
    sh("cmake", "--install", BUILD, "--prefix", built)
    # What is installed may be moved.
    moved = prefix / "elsewhere"
    shutil.move(built, moved)
    return moved


def build(source, binary, prefix):
    cache = (BUILD / "CMakeCache.txt").read_text()
    same = [
        f"-D{k}={re.search(rf'^{k}:[A-Z]+=(.*)$', cache, re.M).group(1)}"
        for k in ("CMAKE_MAKE_PROGRAM", "CMAKE_CXX_COMPILER")
    ]
    sh("cmake", "-G", "Ninja", "-S", source, "-B", binary, f"-DCMAKE_PREFIX_PATH={prefix}", *same)
    sh("cmake", "--build", binary)


@pytest.mark.slow
def test_a_project_outside_builds_and_runs(prefix, tmp_path):
    build(ROOT / "tests/install/consumer", tmp_path, prefix)
    assert sh(tmp_path / "consumer") == "[2, 1] 6\nlearnt\n"


@pytest.mark.slow
def test_the_installed_headers_need_no_other_library(prefix):
    include = prefix / "include"
    headers = {p.relative_to(include).as_posix(): p.read_text() for p in include.rglob("*.h")}
    assert "holon/holon.h" in headers and "holon/ops/matmul.h" in headers
    foreign = {h: list(check_headers.foreign_includes(h, text, NOTHING)) for h, text in headers.items()}
    assert not {h: f for h, f in foreign.items() if f}
    included = {i for text in headers.values() for i in re.findall(r'#include "(holon/[^"]+)"', text)}
    assert not included - set(headers)


@pytest.mark.slow
def test_the_guides_first_program(prefix, tmp_path):
    blocks = docs.blocks((ROOT / "docs/guides/cpp.md").read_text())
    for name, language in (("CMakeLists.txt", "cmake"), ("program.cpp", "cpp")):
        (tmp_path / name).write_text(next(b.text for b in blocks if b.language == language))
    build(tmp_path, tmp_path / "build", prefix)
    printed = sh(
        prefix / "bin/holon-launch", "--nproc_per_node", 2, "--master_port", free_port(), tmp_path / "build/program"
    )
    assert "rank 0: y is [4, 8] under S(0)" in printed


@pytest.mark.slow
def test_the_installed_library_does_not_point_into_the_tree(prefix):
    library = next(prefix.rglob("libholon.so.0"))
    assert str(ROOT) not in sh("objdump", "-p", library)
    for path in prefix.rglob("*.cmake"):
        assert str(ROOT) not in path.read_text(), path


@pytest.mark.slow
def test_the_installed_launcher_runs(prefix):
    launcher = prefix / "bin/holon-launch"
    env = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    assert "nproc_per_node" in sh(launcher, "--help", env=env)
