"""What the tests of installations share: the build folder that is installed, and the tools that it was built with."""

import re
import subprocess

import pytest

from .ranks import ROOT

BUILD = ROOT / "build/dev"
needs_build = pytest.mark.skipif(not (BUILD / "CMakeCache.txt").exists(), reason="build/dev is not there: ./dev build")


def sh(*command, **options):
    """What the command prints. Errors: an exit status other than 0 (AssertionError, with all that it printed)."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def same_tools():
    """CMake's options for the compiler and the ninja of the build folder."""
    cache = (BUILD / "CMakeCache.txt").read_text()
    names = ("CMAKE_MAKE_PROGRAM", "CMAKE_CXX_COMPILER")
    return [f"-D{name}={re.search(rf'^{name}:[A-Z]+=(.*)$', cache, re.M).group(1)}" for name in names]


def soname_version():
    """The version of the ABI: of the shared library's name, and of its symbols."""
    major, minor = re.search(r"project\(Holon VERSION (\d+)\.(\d+)", (ROOT / "CMakeLists.txt").read_text()).groups()
    return f"0.{minor}" if major == "0" else major
