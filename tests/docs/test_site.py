"""The site of `./dev docs --site`: all documents are in it, it can be searched, and no link leads nowhere."""

import json
import re
import subprocess
import sys

import pytest
from harness.ranks import ROOT, environment

sys.path.insert(0, str(ROOT / "tools"))
import build_site  # noqa: E402

CONFIG = """
site_name: a site
use_directory_urls: false
theme: {{name: material, font: false}}
markdown_extensions: [pymdownx.highlight, pymdownx.superfences]
validation:
  nav: {{omitted_files: warn, not_found: warn}}
  links: {{not_found: ignore, anchors: ignore}}
nav: {nav}
"""


class Tree:
    """A small repository."""

    def __init__(self, root, nav):
        self.root, self.out = root, root / "build/site"
        self.write("CMakeLists.txt", "project(Holon VERSION 3.2.1 LANGUAGES CXX)")
        self.write("mkdocs.yml", CONFIG.format(nav=json.dumps(nav)))
        self.write(".gitignore", "build/\n")
        self.write("reference/README.md", "# Reference\n")
        subprocess.run(["git", "init", "-q", root], check=True)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def build(self):
        return build_site.make(self.root, self.root / "reference", self.out, self.root / "mkdocs.yml")

    def page(self, name):
        return (self.out / name).read_text()


def words(html):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", html))


def test_pages_and_what_they_link_to(tmp_path):
    tree = Tree(tmp_path, ["README.md", "docs/a.md", "docs/note.md", "docs/reference/*"])
    tree.write(
        "README.md",
        "# Home\n\n[a](docs/a.md#second-part), [docs/note.ipynb](docs/note.ipynb), [code](src/x.py), [all](src), "
        "[reference](docs/reference/README.md), "
        "[elsewhere](https://example.org/x), `[no](link)`\n\n```python ranks=2\n[no](link)\n```\n",
    )
    tree.write("docs/a.md", "# A\n\n## Second part\n\n![picture](p.svg) [home](../README.md#home)\n")
    tree.write("docs/p.svg", '<svg xmlns="http://www.w3.org/2000/svg"/>')
    tree.write("src/x.py", "print('```')\n")
    tree.write("src/deep/y.cpp", "int y;\n")
    (tmp_path / "src/z.bin").write_bytes(b"\xff\xfe\x00")
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": ["two\n", "lines\n"]},
        {"output_type": "display_data", "data": {"text/html": "<svg>\n\n<text>drawn</text></svg>", "text/plain": "x"}},
    ]
    cells = [
        {"cell_type": "markdown", "source": ["# Note\n", "\n", "[a](a.md)"]},
        {"cell_type": "code", "source": "show()", "outputs": outputs},
    ]
    tree.write("docs/note.ipynb", json.dumps({"cells": cells}))
    assert tree.build() == []
    home, note = tree.page("index.html"), tree.page("docs/note.html")
    assert 'href="docs/a.html#second-part"' in home and 'href="src/x.py.html"' in home and "Holon 3.2.1" in home
    assert '<a href="docs/note.html">Note</a>' in home
    assert '<span class="filename">2 ranks</span>' in home and "[no](link)" in words(home)
    assert "print('```')" in words(tree.page("src/x.py.html"))
    listed = tree.page("src/index.html")
    assert (
        'href="deep/y.cpp.html"' in listed and "z.bin" in listed and "int y;" in words(tree.page("src/deep/y.cpp.html"))
    )
    assert "<text>drawn</text></svg>" in note and "two lines" in words(note) and 'href="note.ipynb"' in note
    found = json.loads(tree.page("search/search_index.json"))["docs"]
    assert any(d["location"] == "docs/a.html#second-part" for d in found)
    assert not any(d["location"].startswith("src/") for d in found), "source files are found in searches"


def test_a_broken_link_is_named_with_its_page(tmp_path):
    tree = Tree(tmp_path, ["README.md", "docs/a.md", "docs/reference/*"])
    tree.write("README.md", '# Home\n\n[gone](docs/gone.md)\n\n[here](#no-such)\n\n<img src="docs/gone.svg">\n')
    tree.write("docs/a.md", "# A\n\n[home](../README.md#elsewhere) [fine](../README.md#home) [out](../../x.md)\n")
    assert sorted(tree.build()) == [
        "README.md: the link #no-such leads nowhere: no heading of README.md has that anchor",
        "README.md: the link docs/gone.md leads nowhere: the site has no docs/gone.md",
        "README.md: the link docs/gone.svg leads nowhere: the site has no docs/gone.svg",
        "docs/a.md: the link ../../x.md leads nowhere: the site has no ../x.md",
        "docs/a.md: the link ../README.md#elsewhere leads nowhere: no heading of README.md has that anchor",
    ]


@pytest.mark.parametrize(
    "nav, said", [(["README.md"], "docs/a.md"), (["README.md", "docs/a.md", "docs/b.md"], "docs/b.md")]
)
def test_the_menu_has_every_page(tmp_path, nav, said):
    tree = Tree(tmp_path, [*nav, "docs/reference/*"])
    tree.write("README.md", "# Home\n")
    tree.write("docs/a.md", "# A\n")
    (problem,) = tree.build()
    assert said in problem and "nav" in problem


def test_an_output_that_cannot_be_shown(tmp_path):
    tree = Tree(tmp_path, ["README.md", "docs/note.md"])
    tree.write("README.md", "# Home\n")
    cells = [
        {"cell_type": "code", "source": "x", "outputs": [{"output_type": "display_data", "data": {"image/png": ""}}]}
    ]
    tree.write("docs/note.ipynb", json.dumps({"cells": cells}))
    with pytest.raises(ValueError, match="image/png"):
        tree.build()


@pytest.mark.slow
def test_the_site(written_reference, tmp_path):
    reference, made = written_reference
    assert made.returncode == 0, made.stderr
    done = subprocess.run(
        [sys.executable, ROOT / "tools/build_site.py", "--reference", reference, "--output", tmp_path],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    pages = {str(p.relative_to(tmp_path)): p.read_text() for p in tmp_path.rglob("*.html")}
    shown = "tutorial/python tutorial/cpp guides/graph reference/ops/matmul reference/cpp/nn".split()
    assert {"index.html", *(f"docs/{name}.html" for name in shown)} <= set(pages)
    found = {d["location"] for d in json.loads((tmp_path / "search/search_index.json").read_text())["docs"]}
    assert {"docs/reference/ops/matmul.html#linear", "docs/guides/pipelines.html#schedules"} <= found
    assert "docs/reference/cpp/nn.html#linear" in found
    for name, text in pages.items():
        loaded = re.findall(r"<(?:script|img|iframe)[^>]* src=[\"']?(http[^\"' >]+)", text)
        loaded += re.findall(r"<link[^>]* href=[\"']?(http[^\"' >]+)", text)
        assert not loaded, f"{name} loads {loaded} from elsewhere"


def test_without_a_reference(tmp_path):
    command = [sys.executable, ROOT / "tools/build_site.py", "--reference", tmp_path, "--output", tmp_path / "site"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "./dev docs" in done.stderr
