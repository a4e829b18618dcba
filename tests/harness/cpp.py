"""C++ programs of the tests, compiled as a user's are. HOLON_TEST_BUILD names the build folder whose library they get,
instead of build/dev: build/asan, where `./dev test --asan` runs them under the sanitizers."""

import os
import re
import subprocess

from .ranks import ROOT

BUILD = ROOT / os.environ.get("HOLON_TEST_BUILD", "build/dev")
WARNINGS = ["-Wall", "-Wextra", "-Wno-missing-field-initializers"]
LAUNCHER = BUILD / "bin/holon-launch"


def sanitizers():
    """The option of the compiler for the sanitizers that the build folder's library has."""
    cache = BUILD / "CMakeCache.txt"
    found = re.search(r"^HOLON_SANITIZE:\w+=(.+)$", cache.read_text(), re.M) if cache.exists() else None
    return [f"-fsanitize={found.group(1)}", "-fno-sanitize-recover=undefined"] if found else []


def compiled(source, program=None, *flags):
    """Compiles a file into a program, or without one only checks it; returns the finished process."""
    command = ["c++", "-std=c++20", *flags, f"-I{ROOT}", f"-I{BUILD}/generated", source]
    if program is None:
        command.append("-fsyntax-only")
    else:
        command += [*sanitizers(), "-o", program, BUILD / "lib/libholon.so", f"-Wl,-rpath,{BUILD}/lib"]
    return subprocess.run([str(c) for c in command], capture_output=True, text=True)
