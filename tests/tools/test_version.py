"""One version everywhere."""

import re
import subprocess
import sys

from harness.ranks import ROOT, environment


def test_versions_agree():
    places = {
        "CMakeLists.txt": [r"project\(Holon VERSION ([\d.]+)"],
        "pyproject.toml": [r'^version = "([\d.]+)"', r'"holon-tensor-cuda==([\d.]+)"'],
        "python/cuda/pyproject.toml": [r'^version = "([\d.]+)"', r'"holon-tensor==([\d.]+)"'],
        "python/oneflow/pyproject.toml": [r'^version = "([\d.]+)"'],
    }
    versions = {
        f"{name}: {pattern}": re.search(pattern, (ROOT / name).read_text(), re.M).group(1)
        for name, patterns in places.items()
        for pattern in patterns
    }
    assert len(set(versions.values())) == 1, versions


def test_the_packages_say_it():
    ours = re.search(r"project\(Holon VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
    program = "import holon, oneflow; print(holon.__version__, oneflow.__version__)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment(), timeout=100
    )
    assert done.stdout.split() == [ours, ours], done.stdout + done.stderr
