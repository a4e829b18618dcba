#!/usr/bin/env python3
"""Builds the wheels, and shows that they need nothing but Python and NumPy: tools/wheels.py build|check [DIST]

check installs them into an empty environment, runs a product on two ranks there, and looks at every shared library that
is loaded or asked for: it comes from inside of the package, or is glibc's or the compiler's own.
"""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_BYTES = 60 * 2**20
OF_THE_SYSTEM = re.compile(r"(linux-vdso|linux-gate|ld-linux|lib(c|m|dl|rt|pthread|util|gcc_s|stdc\+\+)[.-])")
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
# In one piece, also where nothing is buffered.
sys.stdout.write("".join(f"{{path}}\\n" for path in mapped() - of_python))
"""


def run(*command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(dist):
    """Builds both wheels into the folder, which is emptied, and returns their paths."""
    shutil.rmtree(dist, ignore_errors=True)
    # The compiler by the name that CMake calls it, so that the cache knows what ./dev build has compiled.
    environment = os.environ | {"CXX": os.environ.get("CXX", "/usr/bin/c++")}
    options = "-q --no-deps --no-input --no-build-isolation --no-index --disable-pip-version-check".split()
    options += ["--config-settings=cmake.define.HOLON_WERROR=ON", "--wheel-dir", dist]
    sources = [ROOT, ROOT / "python/oneflow"]
    run(sys.executable, "-m", "pip", "wheel", *options, *sources, env=environment, stdin=subprocess.DEVNULL)
    return wheels(dist)


def wheels(dist):
    found = sorted(dist.glob("holon_*.whl"))
    if len(found) != 2:
        sys.exit(f"{dist} has {len(found)} wheels, not holon-tensor's and holon-oneflow's: ./dev wheel")
    return found


class Environment:
    """A virtual environment of the wheels, with NumPy and nothing else: no pip, no index, no compiler in its PATH."""

    def __init__(self, folder, wheels):
        venv.EnvBuilder(symlinks=True).create(folder)
        self.bin, self.python = folder / "bin", folder / "bin/python"
        site = Path(run(self.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
        numpy = importlib.metadata.distribution("numpy")  # as it is here, so that nothing is downloaded
        for name in {Path(f).parts[0] for f in numpy.files if not str(f).startswith("..")}:
            shutil.copytree(numpy.locate_file(name), site / name)
        run(sys.executable, "-m", "pip", "--python", self.python, "install", "-q", "--no-index", "--no-input", *wheels)
        self.package = site / "holon"
        self.variables = {"PATH": str(self.bin), "HOME": str(folder), "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}

    def run(self, *command, **options):
        return run(*command, env=self.variables | options.pop("env", {}), **options)

    def binaries(self):
        """What is loaded first; the libraries that these need are found by their run paths."""
        return [
            *self.package.glob("_C*.so"),
            *self.package.glob("lib/libholon*.so*"),
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


def check(dist):
    found = wheels(dist)
    with tempfile.TemporaryDirectory() as folder:
        env = Environment(Path(folder, "env"), found)
        if foreign := foreign_libraries(env):
            sys.exit("not in the wheel:\n" + "\n".join(foreign))
        inside = (
            str(env.package.parent.resolve()),
            env.run(env.python, "-c", "import sysconfig; print(sysconfig.get_path('stdlib'))").strip(),
        )
        for module in ("holon", "oneflow"):
            program = Path(folder, f"{module}_program.py")
            program.write_text(PROGRAM.format(module=module, tree=ROOT))
            loaded = env.run(env.bin / "holon-launch", "--nproc_per_node", 2, program, cwd=folder).split()
            if foreign := {p for p in loaded if not p.startswith(inside) and not OF_THE_SYSTEM.match(Path(p).name)}:
                sys.exit(f"import {module} loads {', '.join(sorted(foreign))}: not in the wheel")
    for w in found:
        size = w.stat().st_size
        if size > MAX_BYTES:
            sys.exit(f"{w.name} has {size / 2**20:.1f} MiB; {MAX_BYTES / 2**20:.0f} are allowed")
        print(f"{w.name}: {size / 2**20:.1f} MiB, installs and runs by itself")


if __name__ == "__main__":
    verbs = {"build": build, "check": check}
    if len(sys.argv) not in (2, 3) or sys.argv[1] not in verbs:
        sys.exit(__doc__)
    verbs[sys.argv[1]](Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "dist")
