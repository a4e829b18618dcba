"""The pages of the site: the repository's Markdown in the folders where it is, so that links between pages hold, and a
page for each notebook, source file and folder that they link to."""

import os
import re
import shutil
import subprocess

from . import notebook

CODE = re.compile(r"(^ *(`{3,}).*?^ *\2 *$|`[^`\n]+`)", re.M | re.S)
FENCE = re.compile(r"^( *`{3,}) *([\w+-]+) +(.+)$", re.M)
TARGET = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
NAMED = re.compile(r"\[([\w./-]+\.(?:md|ipynb))\](?=\(([^)\s#]+)\))")
TITLE = re.compile(r"^# (.+)$", re.M)
IMAGES = {".svg", ".png", ".jpg", ".gif"}
LANGUAGES = {
    ".py": "python",
    ".h": "c++",
    ".cpp": "c++",
    ".cu": "c++",
    ".sh": "bash",
    ".cmake": "cmake",
    ".yml": "yaml",
}
LANGUAGES |= {".yaml": "yaml", ".toml": "toml", ".json": "json", ".txt": "text"}
MOST_BYTES = 200_000


def tracked(root, folder):
    """The files of a folder that belong to the repository."""
    command = ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", folder]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return sorted(name for name in set(listed.split("\0")) if name and (root / name).is_file())


def readable(path):
    """The text of a source file, or None where it is too long or no text."""
    if path.stat().st_size > MOST_BYTES:
        return None
    try:
        return path.read_text()
    except UnicodeDecodeError:
        return None


def with_title(fence):
    """A fence's options, which are for the tests, as a title for the reader."""
    start, language, options = fence.groups()
    titles = []
    for option in options.split():
        name, _, value = option.partition("=")
        if name == "ranks":
            titles.append(f"{value} ranks")
        elif name == "file":
            titles.append(value)
        elif name == "cuda":
            titles.append("CUDA device")
    return f'{start}{language} title="{", ".join(titles)}"' if titles else f"{start}{language}"


class Pages:
    """Writes the pages into a folder. origin: the page in that folder -> the file of the repository that it shows."""

    def __init__(self, root, reference, target):
        self.root, self.target = root, target
        self.origin = {}
        self.sources = []  # pages of source files and folders, which are in no menu
        pages = {p.relative_to(root): p for p in [*root.glob("*.md"), *root.glob("docs/**/*.md")]}
        written = root / "docs/reference"
        pages = {name: p for name, p in pages.items() if not p.is_relative_to(written)}
        pages |= {written.relative_to(root) / p.relative_to(reference): p for p in reference.rglob("*.md")}
        self.markdown = {str(name) for name in pages}
        texts = {str(name): path.read_text() for name, path in pages.items()}
        notebooks = {str(p.relative_to(root)): notebook.markdown(p) for p in root.glob("docs/**/*.ipynb")}
        found = {name: TITLE.search(text) for name, text in {**texts, **notebooks}.items()}
        self.titles = {name: title.group(1) for name, title in found.items() if title}
        for name, text in sorted(texts.items()):
            self._add(name, name, text)
        for name, text in sorted(notebooks.items()):
            self._copy(name)
            self._add(f"{name.removesuffix('.ipynb')}.md", name, text)

    def _add(self, page, origin, text):
        if page in self.origin:
            return
        self.origin[page] = origin
        parts, at = [], 0
        for code in CODE.finditer(text):
            parts += [self._with_links(text[at : code.start()], origin), FENCE.sub(with_title, code.group(), count=1)]
            at = code.end()
        parts.append(self._with_links(text[at:], origin))
        # The first page is the only one of its menu.
        self._write(page, ("---\nhide: [navigation]\n---\n" if page == "README.md" else "") + "".join(parts))

    def _write(self, name, text):
        path = self.target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def _copy(self, name):
        path = self.target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self.root / name, path)

    def _with_links(self, text, origin):
        text = NAMED.sub(lambda m: f"[{self._words(*m.groups(), origin)}]", text)
        return TARGET.sub(lambda m: self._link(m.group(), origin), text)

    def _words(self, words, path, origin):
        """The words of a link: a page's title in the place of its file's name."""
        name = os.path.normpath(os.path.join(os.path.dirname(origin), path))
        return self.titles.get(name, words) if os.path.basename(words) == os.path.basename(name) else words

    def _link(self, link, origin):
        """The link as the site has it; one that leads nowhere stays, and is found in the pages that are built."""
        path, hash_sign, anchor = link.partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return link
        name = os.path.normpath(os.path.join(os.path.dirname(origin), path))
        found = self.root / name
        if name in self.markdown or name.startswith("..") or not found.exists():
            return link
        if found.is_dir():
            path = os.path.join(path, self._folder(name))
        elif found.suffix == ".ipynb":
            path = path.removesuffix(".ipynb") + ".md"
        elif found.suffix in IMAGES:
            self._copy(name)
        elif self._source(name):
            path += ".md"
        return path + hash_sign + anchor

    def _folder(self, name):
        """The page of a folder: its README, or a list of its files."""
        if f"{name}/README.md" in self.markdown:
            return "README.md"
        page = f"{name}/index.md"
        if page not in self.origin:
            lines = ["---", "search:", "  exclude: true", "---", f"# {name}/", ""]
            for file in tracked(self.root, name):
                short = os.path.relpath(file, name)
                lines.append(f"- [{short}]({short}.md)" if self._source(file) else f"- {short}")
            self.origin[page] = f"{name}/"
            self.sources.append(page)
            self._write(page, "\n".join([*lines, ""]))
        return "index.md"

    def _source(self, name):
        """Makes the page of a source file; returns whether it can be shown."""
        page, path = f"{name}.md", self.root / name
        if page in self.origin:
            return True
        text = readable(path)
        if text is None:
            return False
        ticks = "`" * (2 + max([1, *(len(run) for run in re.findall("`+", text))]))
        language = LANGUAGES.get(path.suffix, "cmake" if path.name == "CMakeLists.txt" else "text")
        lines = [
            "---",
            "search:",
            "  exclude: true",
            "---",
            f"# {name}",
            "",
            ticks + language,
            text.rstrip("\n"),
            ticks,
        ]
        self.origin[page] = name
        self.sources.append(page)
        self._write(page, "\n".join([*lines, ""]))
        return True
