"""What is said where Holon cannot be built: what is wrong, and what to do."""

import importlib.util
import os
import shutil
import subprocess
import sys

import pytest
from harness.ranks import ROOT

spec = importlib.util.spec_from_file_location("wheels", ROOT / "tools/wheels.py")
wheels = importlib.util.module_from_spec(spec)
spec.loader.exec_module(wheels)

OFF = [f"-DHOLON_WITH_{part}=OFF" for part in ("TESTS", "EXAMPLES", "BENCHMARKS", "CUDA")]


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def configured(binary, *options):
    """What cmake says; it fails."""
    if not shutil.which("cmake") or not shutil.which("ninja"):
        pytest.skip("cmake and ninja are not installed")
    command = ["cmake", "-G", "Ninja", "-S", ROOT, "-B", binary, *OFF, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode, done.stdout
    return " ".join(done.stderr.split())


def test_a_compiler_that_is_too_old(tmp_path):
    real = shutil.which("g++")
    if not real:
        pytest.skip("g++ is not installed")
    old = script(tmp_path / "g++-old", f'exec {real} -U__GNUC__ -D__GNUC__=11 -w "$@"')
    said = configured(tmp_path / "build", f"-DCMAKE_CXX_COMPILER={old}")
    assert f"The compiler {old} is GNU 11" in said and "too old" in said, said
    assert "needs GCC 12 or newer, or Clang 19 or newer" in said and "apt install g++-12" in said, said
    assert f"remove the build folder {tmp_path / 'build'}" in said, said


@pytest.mark.parametrize("kind, version, told", [("Clang", "16.0.6", "which is too old"), ("Clang", "19.1.7", "")])
def test_an_old_clang(kind, version, told):
    if not shutil.which("cmake"):
        pytest.skip("cmake is not installed")
    options = [f"-DCMAKE_CXX_COMPILER_ID={kind}", f"-DCMAKE_CXX_COMPILER_VERSION={version}"]
    done = subprocess.run(
        ["cmake", *options, "-DCMAKE_CXX_COMPILER=clang++", "-P", ROOT / "cmake/Compiler.cmake"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    said = " ".join(done.stderr.split())
    assert (f"clang++ is {kind} {version}, {told}" in said) if told else not said, said


def test_a_python_without_headers(tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import sysconfig\nsysconfig.get_path = lambda *a, **k: '/nowhere'\n")
    python = script(tmp_path / "python3", f'PYTHONPATH={site} exec {sys.executable} "$@"')
    said = configured(tmp_path / "build", f"-DPython_EXECUTABLE={python}")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"Python {version}" in said and f"({python}) has no headers" in said and "/nowhere/Python.h" in said, said
    assert f"apt install python{version}-dev" in said and "-DHOLON_WITH_PYTHON=OFF" in said, said


def test_no_wheel_for_a_python_without_headers(tmp_path, monkeypatch, capsys):
    """Nor for one that is no CPython, is free-threaded, is too old or does not run. One with headers comes first."""

    def python(folder, minor, *words):
        (tmp_path / folder).mkdir(exist_ok=True)
        path = tmp_path / folder / f"python3.{minor}"
        lines = [words[0], f"3.{minor}", *words[1:], "/site", str(path)]
        script(path, "printf '%s\\n' " + " ".join(lines))
        return path

    bare = python("first", 50, "cpython", "False", "False")
    later = python("second", 51, "cpython", "False", "True")
    python("first", 51, "cpython", "False", "False")
    python("first", 52, "pypy", "False", "True")
    python("first", 53, "cpython", "True", "True")
    python("first", 9, "cpython", "False", "True")
    script(tmp_path / "first/python3.54", "echo not chosen >&2; exit 127")
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path / "first"), str(tmp_path / "second")]))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    found = [p for p in wheels.pythons() if str(p).startswith(str(tmp_path))]
    assert found == [str(later)]
    said = capsys.readouterr()
    assert f"3.51 {later}\n" in said.out
    assert (
        f"no wheel for Python 3.50: {bare} has no headers (Python.h). Install them (Debian: python3.50-dev)" in said.err
    )
    assert "3.51" not in said.err and "3.54" not in said.err
