#!/usr/bin/env python3
"""Every header that is installed compiles by itself: tools/check_headers.py ROOT COMPILER [FLAG...]

That a header which some source of the library includes first does so is what the build shows; the others are compiled
here, as many at a time as there are cores. All say #pragma once. None includes a header of another library, which a
program would have to have as well, or a private one of Holon (HOLON_PRIVATE_HEADERS in cmake/Install.cmake).
"""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Parts of a body that is compiled once for each instruction set, and of no use outside of it.
PARTS = re.compile(r"(_body|cpu/vectors|functors64)\.h$")
# Of the backend for CUDA: read as its emulator reads them.
DEVICE = re.compile(r"^holon/(kernels/cuda|comm/device/nccl)/")
FIRST = re.compile(r'(?:\s*//[^\n]*\n)*\s*#include "(holon/[^"]+)"')  # behind comments
INCLUDE = re.compile(r'^\s*#\s*include\s*(<[^>]+>|"[^"]+")', re.M)
OF_CXX = re.compile(r"<[a-z_]+>")
OF_SYSTEM = re.compile(r"<(fcntl|immintrin|sched|unistd|sys/\w+)\.h>")
OF_DEVICES = re.compile(r'<(cuda_runtime|nccl)\.h>|"emulator\.h"')


def private_headers(root):
    """A pattern for the paths of headers that are not installed."""
    install = root / "cmake/Install.cmake"
    m = install.exists() and re.search(r'set\(HOLON_PRIVATE_HEADERS "(.*)"\)', install.read_text())
    return re.compile(m[1].replace("\\\\", "\\")) if m else re.compile("(?!)")


def foreign_includes(header, text, private):
    """What an installed header includes of other libraries and of what is not installed."""
    for include in INCLUDE.findall(text):
        if include.startswith('"holon/'):
            known = not private.search("/" + include[1:-1])
        else:
            known = OF_CXX.fullmatch(include) or OF_SYSTEM.fullmatch(include)
            known = known or (DEVICE.match(header) and OF_DEVICES.fullmatch(include))
        if not known:
            yield include


def main():
    root, command = Path(sys.argv[1]), [*sys.argv[2:], "-fsyntax-only", "-x", "c++", "-"]
    headers = {p.relative_to(root).as_posix() for p in root.glob("holon/**/*.h") if not PARTS.search(p.as_posix())}
    errors = [
        f"{h}: it does not say #pragma once" for h in sorted(headers) if "#pragma once\n" not in (root / h).read_text()
    ]
    private = private_headers(root)
    for h in sorted(h for h in headers if not private.search("/" + h)):
        errors += [
            f"{h}: it is installed and includes {include}, which no program should need: include it in a source"
            for include in foreign_includes(h, (root / h).read_text(), private)
        ]
    shown = {m[1] for p in root.glob("holon/**/*.cpp") if (m := FIRST.match(p.read_text()))}

    def compiled(header):
        device = (
            ["-DHOLON_EMULATED", "-DHOLON_ISA=isa_cuda", f"-I{root}/tests/cuda/emulator", "-Wno-unknown-pragmas"]
            if DEVICE.match(header)
            else []
        )
        done = subprocess.run(
            [command[0], *device, *command[1:]], input=f'#include "{header}"\n', capture_output=True, text=True
        )
        return f"{header}:\n{done.stderr}" if done.returncode else None

    rest = sorted(headers - shown)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        errors += filter(None, pool.map(compiled, rest))
    for e in errors:
        print(e)
    print(f"{len(headers)} headers, of which {len(rest)} were compiled: {len(errors)} errors")
    return 1 if errors or not headers else 0


if __name__ == "__main__":
    sys.exit(main())
