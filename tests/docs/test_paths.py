"""Every path that a document names exists, every link leads somewhere, and every layer has a place in the map."""

import os
import re
from pathlib import Path

import pytest
from harness.ranks import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
FOLDERS = {p.name for p in ROOT.iterdir() if p.is_dir()}
# Written by a build, so not there in a fresh clone.
BUILT = (
    "build/",
    "dist/",
    ".venv/",
    "docs/reference/",
    "holon/ops.h",
    "holon/ops/matmul.h",
    "holon/internal_ops/",
    "holon/version.h",
)


def named_paths(page):
    """Words in backquotes outside of fences that look like a path of this repository."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for word in re.findall(r"`([^`\s]+)`", text):
        word = word.removeprefix("./")
        if re.fullmatch(r"[\w.\-/]+", word) and "/" in word and word.split("/")[0] in FOLDERS:
            yield word


def links(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:|#", target):
            yield target.split("#")[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_paths_exist(page):
    missing = [w for w in named_paths(page) if not w.startswith(BUILT) and not (ROOT / w).exists()]
    written = ROOT / "docs/reference"  # by ./dev docs
    targets = {t: Path(os.path.normpath(page.parent / t)) for t in links(page)}
    missing += [t for t, path in targets.items() if not path.exists() and not path.is_relative_to(written)]
    assert not missing


def test_every_layer_is_on_the_map():
    layers = re.search(r"set\(HOLON_LAYERS\s+([^)]*)\)", (ROOT / "holon/CMakeLists.txt").read_text()).group(1).split()
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert not [name for name in layers if f"`holon/{name}/`" not in text]
