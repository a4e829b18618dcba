"""One version everywhere: CMakeLists.txt has it, all else takes it from there or is compared here."""

import re
import subprocess
import sys

import tomllib
from harness.ranks import ROOT, environment

VERSION = r"project\(Holon VERSION ([\d.]+)"
CURRENT = re.search(VERSION, (ROOT / "CMakeLists.txt").read_text()).group(1)
RELEASED = r"^## (\d+\.\d+\.\d+)\b"


def git(*command):
    done = subprocess.run(["git", "-C", ROOT, *command], capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else ""


def test_packages_have_the_version():
    own = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in own["project"] and "version" in own["project"]["dynamic"]
    (source,) = (s for s in own["tool"]["dynamic-metadata"] if s["field"] == "version")
    found = re.search(source["regex"], (ROOT / source["input"]).read_text(), re.M)
    assert found.group("value") == CURRENT
    assert own["project"]["optional-dependencies"]["cuda"] == [f"holon-tensor-cuda=={CURRENT}"]
    for name in ("cuda", "oneflow"):
        assert tomllib.loads((ROOT / "python" / name / "pyproject.toml").read_text())["project"]["version"] == CURRENT
    cuda = tomllib.loads((ROOT / "python/cuda/pyproject.toml").read_text())
    assert f"holon-tensor=={CURRENT}" in cuda["project"]["dependencies"]


def test_the_packages_say_it():
    program = "import holon, oneflow; print(holon.__version__, oneflow.__version__)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment(), timeout=100
    )
    assert done.stdout.split() == [CURRENT, CURRENT], done.stdout + done.stderr


def test_the_changes_end_with_it():
    versions = re.findall(RELEASED, (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert versions[0] == CURRENT, "the newest version of CHANGELOG.md is CMakeLists.txt's"
    assert versions == sorted(versions, key=lambda v: [int(n) for n in v.split(".")], reverse=True)


def test_tags_are_versions():
    """Of what is tagged, the sources say the tag's version, and CHANGELOG.md has its section."""
    versions = re.findall(RELEASED, (ROOT / "CHANGELOG.md").read_text(), re.M)
    for tag in git("tag", "--list", "v[0-9]*").split():
        assert tag[1:] in versions, f"{tag} has no section in CHANGELOG.md"
        assert re.search(VERSION, git("show", f"{tag}:CMakeLists.txt")).group(1) == tag[1:], tag
