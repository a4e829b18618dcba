"""`cmake --install` makes something that a project outside of the tree finds, compiles against and runs: by CMake, by
pkg-config, with Meson. So is a build folder, without an installation."""

import os
import re
import shutil
import sys

import pytest
from harness import docs
from harness.installed import BUILD, needs_build, same_tools, sh
from harness.ranks import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import check_headers  # noqa: E402

NOTHING = re.compile("(?!)")
pytestmark = [pytest.mark.slow, needs_build]
PROJECTS = ROOT / "examples/projects"


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    built, prefix = tmp_path_factory.mktemp("built"), tmp_path_factory.mktemp("prefix")
    sh("cmake", "--install", BUILD, "--prefix", built)
    # What is installed may be moved.
    moved = prefix / "elsewhere"
    shutil.move(built, moved)
    return moved


def without_library_path():
    return {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}


def build(source, binary, *options):
    sh("cmake", "-G", "Ninja", "-S", source, "-B", binary, *same_tools(), *options)
    sh("cmake", "--build", binary)


def test_a_project_outside_builds_and_runs(prefix, tmp_path):
    build(ROOT / "tests/install/consumer", tmp_path, f"-DCMAKE_PREFIX_PATH={prefix}")
    assert sh(tmp_path / "consumer") == "[2, 1] 6\nlearnt\n"


def test_a_build_folder_is_a_package(tmp_path):
    build(ROOT / "tests/install/consumer", tmp_path, f"-DHolon_DIR={BUILD}")
    assert sh(tmp_path / "consumer") == "[2, 1] 6\nlearnt\n"


def test_the_project_with_presets(prefix, tmp_path):
    source = shutil.copytree(PROJECTS / "cmake", tmp_path / "project")
    environment = {**without_library_path(), "CMAKE_PREFIX_PATH": str(prefix)}
    sh("cmake", "--preset", "release", *same_tools(), cwd=source, env=environment)
    sh("cmake", "--build", "--preset", "release", cwd=source, env=environment)
    said = sh("ctest", "--preset", "release", "-V", cwd=source, env=environment)
    assert "1 ranks: the loss fell" in said and "2 ranks: the loss fell" in said, said
    assert "100% tests passed, 0 tests failed out of 2" in said


def meson():
    pytest.importorskip("mesonbuild", reason="needs meson (tools/requirements-test.txt)")
    return [sys.executable, "-m", "mesonbuild.mesonmain"]


def test_the_project_with_meson(prefix, tmp_path):
    source = shutil.copytree(PROJECTS / "meson", tmp_path / "project")
    environment = {**without_library_path(), "PKG_CONFIG_PATH": str(pkg_config_folder(prefix))}
    sh(*meson(), "setup", "build", cwd=source, env=environment)
    sh(*meson(), "compile", "-C", "build", cwd=source, env=environment)
    said = sh(*meson(), "test", "-C", "build", "-v", cwd=source, env=environment)
    assert "rank 0 of 2: [2, 8] of [4, 8]" in said and "rank 1 of 2: [2, 8] of [4, 8]" in said, said
    assert re.search(r"^Ok: +1", said, re.M) and re.search(r"^Fail: +0", said, re.M), said


def pkg_config_folder(prefix):
    return next(prefix.rglob("holon.pc")).parent


def pkg_config(prefix, *what):
    if not shutil.which("pkg-config"):
        pytest.skip("pkg-config is not installed")
    return sh("pkg-config", *what, "holon", env={**os.environ, "PKG_CONFIG_PATH": str(pkg_config_folder(prefix))})


def test_pkg_config_leads_a_compiler_to_it(prefix, tmp_path):
    flags = pkg_config(prefix, "--cflags", "--libs").split()
    assert os.path.realpath(prefix / "include") in [os.path.realpath(f[2:]) for f in flags if f.startswith("-I")]
    libraries = pkg_config(prefix, "--variable=libdir").strip()
    compiler = next(o.split("=", 1)[1] for o in same_tools() if "CXX_COMPILER" in o)
    source = ROOT / "tests/install/consumer/main.cpp"
    sh(compiler, "-std=c++20", source, *flags, f"-Wl,-rpath,{libraries}", "-o", tmp_path / "program")
    assert sh(tmp_path / "program", env=without_library_path()) == "[2, 1] 6\nlearnt\n"
    version = re.search(r"project\(Holon VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
    assert pkg_config(prefix, "--modversion").strip() == version
    assert "nproc_per_node" in sh(pkg_config(prefix, "--variable=launcher").strip(), "--help")


def test_a_compiler_of_an_older_language_is_told(prefix, tmp_path):
    flags = pkg_config(prefix, "--cflags").split()
    (tmp_path / "program.cpp").write_text("#include <holon/holon.h>\n")
    with pytest.raises(AssertionError, match="C\\+\\+20"):
        sh("g++", "-std=c++17", "-fsyntax-only", *flags, tmp_path / "program.cpp")


def test_the_installed_headers_need_no_other_library(prefix):
    include = prefix / "include"
    headers = {p.relative_to(include).as_posix(): p.read_text() for p in include.rglob("*.h")}
    assert "holon/holon.h" in headers and "holon/ops/matmul.h" in headers
    foreign = {h: list(check_headers.foreign_includes(h, text, NOTHING)) for h, text in headers.items()}
    assert not {h: f for h, f in foreign.items() if f}
    included = {i for text in headers.values() for i in re.findall(r'#include "(holon/[^"]+)"', text)}
    assert not included - set(headers)


def test_the_guides_first_program(prefix, tmp_path):
    blocks = docs.blocks((ROOT / "docs/guides/cpp.md").read_text())
    for name, language in (("CMakeLists.txt", "cmake"), ("program.cpp", "cpp")):
        (tmp_path / name).write_text(next(b.text for b in blocks if b.language == language))
    build(tmp_path, tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    printed = sh(prefix / "bin/holon-launch", "--nproc_per_node", 2, tmp_path / "build/program")
    assert "rank 0: y is [4, 8] under S(0)" in printed


def test_the_guides_library_for_python(prefix, tmp_path):
    blocks = docs.blocks((ROOT / "docs/guides/cpp.md").read_text())
    (tmp_path / "CMakeLists.txt").write_text(
        next(b.text for b in blocks if b.language == "cmake" and "MODULE" in b.text)
    )
    (tmp_path / "models.cpp").write_text(next(b.text for b in blocks if b.options.get("file") == "models.cpp"))
    build(tmp_path, tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    program = (
        "import sys, holon as flow; models = flow.import_library(sys.argv[1]); net = models.Net(4); "
        "batch = flow.ones(2, 3), flow.ones(2, 1); "
        "print(models.__name__, net(batch[0]).shape, models.train(net, [batch]) > 0)"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    said = sh(sys.executable, "-c", program, tmp_path / "build/libmodels.so", env=env)
    assert said == "models holon.Size([2, 1]) True\n"
    # It is for any version of Python.
    assert " Py" not in sh("nm", "-D", "--undefined-only", tmp_path / "build/libmodels.so")


def test_what_is_installed_does_not_point_into_the_tree(prefix):
    for library in prefix.rglob("libholon*.so*"):
        assert str(ROOT) not in sh("objdump", "-p", library), library
    for path in [*prefix.rglob("*.cmake"), *prefix.rglob("*.pc")]:
        assert str(ROOT) not in path.read_text(), path


def test_the_installed_launcher_runs(prefix):
    assert "nproc_per_node" in sh(prefix / "bin/holon-launch", "--help", env=without_library_path())
