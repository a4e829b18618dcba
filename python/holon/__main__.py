"""``python -m holon``: the command `holon`, e.g. `holon checkpoint inspect DIR`."""

import os
import sys

from ._programs import find_program


def main():
    path = find_program("holon")
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
