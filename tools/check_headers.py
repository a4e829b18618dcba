#!/usr/bin/env python3
"""Every header that is installed compiles by itself: tools/check_headers.py ROOT COMPILER [FLAG...]

That a header which some source of the library includes first does so is what the build shows; the others are compiled
here, as many at a time as there are cores. All say #pragma once.
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


def main():
    root, command = Path(sys.argv[1]), [*sys.argv[2:], "-fsyntax-only", "-x", "c++", "-"]
    headers = {p.relative_to(root).as_posix() for p in root.glob("holon/**/*.h") if not PARTS.search(p.as_posix())}
    errors = [
        f"{h}: it does not say #pragma once" for h in sorted(headers) if "#pragma once\n" not in (root / h).read_text()
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
