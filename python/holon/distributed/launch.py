"""``python3 -m holon.distributed.launch``: one process per rank. Runs holon-launch with this interpreter."""

import os
import shutil
import sys


def find_launcher():
    """Return the path of holon-launch: HOLON_LAUNCH, next to the package, in PATH,
    or in a build folder of the sources."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    source = os.path.dirname(os.path.dirname(package))
    places = [
        os.environ.get("HOLON_LAUNCH", ""),
        os.path.join(package, "bin", "holon-launch"),
        shutil.which("holon-launch") or "",
        *(os.path.join(source, "build", name, "bin", "holon-launch") for name in ("release", "dev")),
    ]
    for path in places:
        if path and os.access(path, os.X_OK):
            return path
    sys.exit(
        "holon.distributed.launch: the program holon-launch was not found next to the package or in PATH. "
        "Install Holon again, or set HOLON_LAUNCH to its path."
    )


def main():
    path = find_launcher()
    os.execv(path, [path, "--python", sys.executable, *sys.argv[1:]])


if __name__ == "__main__":
    main()
