"""What the kernels of libholon_cuda.so need of a multiprocessor, as compiled: registers, local and shared memory.

tools/cuda_resources.py [--arch 90] [PATTERN]   a line for each kernel with PATTERN in its name, by local memory
"""

import argparse
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
MODULE = ROOT / "build/dev/lib/libholon_cuda.so"
REGISTERS, THREADS = 65536, 2048  # of a multiprocessor
NAMESPACES = ("holon::kernels::cuda::", "(anonymous namespace)::", "holon::kernels::isa_cuda::", "holon::")


class Kernel(NamedTuple):
    arch: int  # 80, 90
    name: str  # as short_name() gives it
    registers: int  # of a thread
    local: int  # bytes of a thread: spilled registers, and arrays that are indexed while it runs
    shared: int  # bytes of a block that the kernel declares itself

    def resident(self, threads, dynamic=0):
        """Threads of a multiprocessor at work at once, by registers and shared memory, with blocks of so many."""
        of_warp = -(-self.registers * 32 // 256) * 256
        blocks = min(REGISTERS // (of_warp * -(-threads // 32)), THREADS // threads)
        shared = self.shared + dynamic + 1024  # the system's
        return threads * min(blocks, (228 if self.arch >= 90 else 164) * 1024 // shared)


def find_tool(name):
    """The path of one of the toolkit's programs, or None."""
    nvcc = shutil.which("nvcc")
    places = [Path(nvcc).resolve().parent] if nvcc else []
    places += [Path("/usr/local/cuda/bin"), ROOT / ".cuda/nvidia/cu13/bin"]
    return shutil.which(name) or next((str(p / name) for p in places if (p / name).exists()), None)


def compiler_version():
    """nvcc's version as (major, minor); (0, 0) without one."""
    nvcc = find_tool("nvcc")
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout if nvcc else ""
    found = re.search(r"release (\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def short_name(name):
    """A demangled kernel without Holon's namespaces, result and parameters."""
    for space in NAMESPACES:
        name = name.replace(space, "")
    name, depth = name.removeprefix("void "), 0
    for i, c in enumerate(name):
        depth += (c == "<") - (c == ">")
        if c == "(" and depth == 0:
            return name[:i]
    return name


def demangled(names):
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    return done.stdout.split("\n")


def kernels(module=MODULE):
    """All kernels of the module, for each architecture that it has code for."""
    tool = find_tool("cuobjdump")
    text = subprocess.run([tool, "-res-usage", str(module)], capture_output=True, text=True, check=True).stdout
    found, arch = [], 0
    for line in text.split("\n"):
        if match := re.match(r"arch = sm_(\d+)", line):
            arch = int(match[1])
        elif match := re.match(r"\s*Function (\S+):", line):
            found.append((arch, match[1]))
        elif "REG:" in line:
            n = {key: int(value) for key, value in re.findall(r"([A-Z]+):(\d+)", line)}
            # From 9.0 on a KiB of shared memory is the system's, and counted where a kernel has some of its own.
            shared = max(0, n["SHARED"] - (1024 if arch >= 90 else 0))
            found[-1] += (n["REG"], n["STACK"] + n["LOCAL"], shared)
    names = demangled([f[1] for f in found])
    return [Kernel(f[0], short_name(name), *f[2:]) for f, name in zip(found, names) if len(f) == 5]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", nargs="?", default="")
    parser.add_argument("--arch", type=int, default=90)
    parser.add_argument("--module", type=Path, default=Path(os.environ.get("HOLON_CUDA_LIBRARY", MODULE)))
    options = parser.parse_args()
    if not find_tool("cuobjdump"):
        parser.error("there is no cuobjdump: it is a part of the CUDA toolkit, and nvidia-cuda-cuobjdump on PyPI")
    print("registers  local  shared  kernel")
    for k in sorted(kernels(options.module), key=lambda k: (-k.local, k.name)):
        if k.arch == options.arch and options.pattern in k.name:
            print(f"{k.registers:9}  {k.local:5}  {k.shared:6}  {k.name}")


if __name__ == "__main__":
    main()
