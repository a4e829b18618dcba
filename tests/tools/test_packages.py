"""The wheel of the package oneflow has all of its folders."""

import tomllib
from harness.ranks import ROOT


def test_all_folders_are_packages():
    folder = ROOT / "python/oneflow"
    inits = folder.rglob("__init__.py")
    names = {".".join(("oneflow", *path.relative_to(folder).parts[:-1])): path.parent for path in inits}
    settings = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert sorted(settings["packages"]) == sorted(names)
    assert {name: (folder / where).resolve() for name, where in settings["package-dir"].items()} == names
