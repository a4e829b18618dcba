"""``python -m holon``: the command `holon`, e.g. `holon checkpoint inspect DIR`."""

import os
import sys

from ._programs import find_program


def main():
    if sys.argv[1:2] == ["check"]:
        from ._check import main as check

        sys.exit(check(sys.argv[2:]))
    if sys.argv[1:2] == ["explicit"]:
        from ._explicit import main as explicit

        sys.exit(explicit(sys.argv[2:]))
    path = find_program("holon")
    args = sys.argv[1:]
    if args[:1] == ["contract"] and args[1:2] in (["record"], ["check"]) and any(a.endswith(".py") for a in args):
        args[2:2] = ["--python", sys.executable]
    os.execv(path, [path, *args])


if __name__ == "__main__":
    main()
