"""Draws digits in the manner of MNIST, as the four files that load_mnist() reads:
python -m holon.data.synthetic_mnist DIR"""

import argparse
import os
import sys

from .. import _C


def draw(n, seed=0, stream=0):
    """Returns n drawn digits, uint8 [n, 28, 28], and which they are, uint8 [n].
    Sample i depends on seed, stream and i alone."""
    return _C.draw_digits(n, seed, stream)


def write(folder, train=60_000, test=10_000, seed=0, force=False):
    """Writes MNIST's four files, of drawn digits, into a folder; the same bytes for the same arguments."""
    _C.write_synthetic_mnist(os.fspath(folder), train, test, seed, force)


def main(arguments=None):
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m holon.data.synthetic_mnist", description=__doc__.partition(":")[0] + "."
    )
    parser.add_argument("folder", metavar="DIR", help="where the files go; it is made if it is not there")
    parser.add_argument("--train", type=int, default=60_000, help="digits to train with (60000)")
    parser.add_argument("--test", type=int, default=10_000, help="digits to test with (10000)")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws other digits (0)")
    parser.add_argument("--force", action="store_true", help="write over MNIST's files that are there")
    options = parser.parse_args(arguments)
    try:
        write(options.folder, options.train, options.test, options.seed, options.force)
    except (RuntimeError, ValueError) as e:
        sys.exit(str(e))
    folder = os.path.abspath(options.folder)
    above, name = os.path.split(folder)
    use = (
        f"HOLON_DATA_DIR={above} lets load_mnist() find them"
        if name == "mnist"
        else f"load_mnist(root={folder!r}) reads them"
    )
    print(f"{options.train} and {options.test} digits are in {folder}; {use}.")


if __name__ == "__main__":
    main()
