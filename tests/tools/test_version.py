"""One version everywhere."""

import re

from harness.ranks import ROOT


def test_versions_agree():
    places = {
        "CMakeLists.txt": r"project\(Holon VERSION ([\d.]+)",
        "pyproject.toml": r'^version = "([\d.]+)"',
        "python/oneflow/pyproject.toml": r'^version = "([\d.]+)"',
    }
    versions = {name: re.search(pattern, (ROOT / name).read_text(), re.M).group(1) for name, pattern in places.items()}
    assert len(set(versions.values())) == 1, versions
