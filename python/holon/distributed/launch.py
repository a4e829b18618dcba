"""``python3 -m holon.distributed.launch``: one process per rank. Runs holon-launch with this interpreter."""

import os
import sys

from .._programs import find_program


def main():
    path = find_program("holon-launch", "HOLON_LAUNCH")
    os.execv(path, [path, "--python", sys.executable, *sys.argv[1:]])


if __name__ == "__main__":
    main()
