#!/usr/bin/env python3
"""Installs the wheels of dist/ into a fresh environment and shows that they need nothing else: tools/check_wheel.py [DIST]

Imports, runs a product on two ranks by the installed launcher, and checks that every shared library that is not glibc's or
the compiler's comes from inside of the package.
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OF_THE_SYSTEM = re.compile(r"(linux-vdso|ld-linux|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so)")
PROGRAM = """
import sys
import {module} as flow
assert not any("{tree}" in p for p in sys.path), sys.path
p = flow.placement.all("cpu")
x = flow.ones(4, 5, placement=p, sbp=flow.sbp.split(0))
w = flow.ones(5, 8, placement=p, sbp=flow.sbp.broadcast)
y = flow.matmul(x, w)
assert y.shape == (4, 8) and y.to_local().shape == (2, 8) and float(y.sum().item()) == 160.0, y
sys.stdout.write(f"{{flow.env.get_rank()}} of {{flow.env.get_world_size()}}\\n")  # in one piece, also where nothing is buffered
"""


def run(*command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def main():
    dist = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist"
    wheels = sorted(dist.glob("holon_*.whl"))
    if not wheels:
        sys.exit(f"no wheel in {dist}: ./dev wheel")
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder, "env/bin/python")
        run("/usr/bin/python3", "-m", "venv", python.parent.parent)
        run(python, "-m", "pip", "install", "-q", "--no-input", *wheels)
        package = Path(run(python, "-c", "import holon; print(holon.__path__[0])", cwd=folder).strip())
        for binary in [*package.glob("_C*.so"), package / "lib/libholon_gloo.so", package / "bin/holon-launch"]:  # ldd follows what these need
            for name, path in re.findall(r"^\s*(\S+) => (.+?)(?: \(0x|$)", run("ldd", binary), re.M):
                if not OF_THE_SYSTEM.match(name) and not Path(path).resolve().is_relative_to(package.resolve()):
                    sys.exit(f"{binary.relative_to(package)} takes {name} from {path}: it is not in the wheel")
        for module in ("holon", "oneflow"):
            program = Path(folder, f"{module}_program.py")
            program.write_text(PROGRAM.format(module=module, tree=ROOT))
            out = run(python.parent / "holon-launch", "--nproc_per_node", 2, program, cwd=folder)
            if sorted(out.split("\n")) != ["", "0 of 2", "1 of 2"]:
                sys.exit(f"{module} on two ranks printed:\n{out}")
    for w in wheels:
        print(f"{w.name}: {w.stat().st_size / 2**20:.1f} MiB, installs and runs by itself")


if __name__ == "__main__":
    main()
