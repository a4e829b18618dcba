"""The programs that are installed with the package."""

import os
import shutil
import sys


def find_program(name, variable=""):
    """Returns the path of a program of Holon's: what the environment variable says, next to the package, in PATH, or
    in a build folder of the sources. Exits with a message if it is nowhere."""
    package = os.path.dirname(os.path.abspath(__file__))
    source = os.path.dirname(os.path.dirname(package))
    places = [
        os.environ.get(variable, ""),
        os.path.join(package, "bin", name),
        *(os.path.join(source, "build", folder, "bin", name) for folder in ("release", "dev")),
        shutil.which(name) or "",
    ]
    for path in places:
        if path and os.access(path, os.X_OK) and not _is_script(path):
            return path
    sys.exit(
        f"holon: the program {name} was not found next to the package or in PATH. Install Holon again"
        + (f", or set {variable} to its path." if variable else ".")
    )


def _is_script(path):
    # pip puts a script of the same name into PATH, which calls this.
    with open(path, "rb") as file:
        return file.read(2) == b"#!"
