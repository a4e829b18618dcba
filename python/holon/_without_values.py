"""``holon contract record --no-values``: runs a program as one rank of a world that is not there."""

import os
import sys

from . import _C


def main(file, ranks, hosts, program, arguments):
    if not program.endswith(".py"):
        sys.exit("holon contract record --no-values: it runs Python programs; record a program in C++ with values.")
    if ranks % hosts:
        sys.exit(f"holon contract record --no-values: {ranks} ranks do not divide among {hosts} hosts.")
    _C.add_package_folder(os.path.abspath(__file__))
    sys.argv = [program, *arguments]
    sys.path[0] = os.path.dirname(os.path.realpath(program))
    space = sys.modules["__main__"].__dict__
    for name in [n for n in space if not n.startswith("__")]:
        del space[name]
    space["__file__"] = program
    with open(program) as source:
        code = compile(source.read(), os.path.realpath(program), "exec", dont_inherit=True)
    world = _C.VirtualWorld(ranks, ranks // hosts, file)
    failed = True
    try:
        exec(code, space)
        failed = False
    except SystemExit as end:
        failed = bool(end.code)
        raise
    finally:
        world.end(failed)


if __name__ == "__main__":
    # The program gets the module __main__; what runs it is this one, imported.
    from holon._without_values import main as run

    run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5:])
