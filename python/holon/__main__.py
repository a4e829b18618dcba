"""``python -m holon``: the command `holon`, e.g. `holon checkpoint inspect DIR`."""

import os
import sys

from ._programs import find_program


def main():
    if sys.argv[1:2] == ["check"]:
        from ._check import main as check

        sys.exit(check(sys.argv[2:]))
    path = find_program("holon")
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
