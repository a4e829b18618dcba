#!/usr/bin/env python3
"""Makes a site of static pages with search from the guides, the tutorial and the reference: `./dev docs --site`.

  .venv/bin/python tools/build_site.py [--reference FOLDER] [--output FOLDER]

Exits with status 1 where a page is in no menu or a link leads nowhere, and names both.
"""

import argparse
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["NO_MKDOCS_2_WARNING"] = "1"

from mkdocs.commands.build import build  # noqa: E402
from mkdocs.config import load_config  # noqa: E402
from mkdocs.exceptions import Abort, ConfigurationError  # noqa: E402
from website import links  # noqa: E402
from website.pages import Pages  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
WEBSITE = ROOT / "tools/website"


def version(root):
    """The version, and the commit where that is not the version's own."""
    number = re.search(r"project\(Holon VERSION ([\d.]+)", (root / "CMakeLists.txt").read_text()).group(1)
    command = ["git", "-C", root, "describe", "--tags", "--always", "--dirty", "--match", "v*"]
    commit = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return number if commit in ("", f"v{number}") else f"{number} ({commit})"


def with_folders(nav, pages):
    """The menu with the pages of a folder in the place of folder/*, its README first."""
    if isinstance(nav, dict):
        return {title: with_folders(item, pages) for title, item in nav.items()}
    if isinstance(nav, str):
        return nav
    found = []
    for item in nav:
        if isinstance(item, str) and item.endswith("/*"):
            inside = [page for page in pages if os.path.dirname(page) == item.removesuffix("/*")]
            found += sorted(inside, key=lambda page: (not page.endswith("/README.md"), page))
        else:
            found.append(with_folders(item, pages))
    return found


class Complaints(logging.Handler):
    """What MkDocs warns of."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.found = []

    def emit(self, record):
        self.found.append(record.getMessage())


def built_name(page):
    """The file that MkDocs makes of a page."""
    return re.sub(r"(^|/)README\.md$", r"\1index.md", page).removesuffix(".md") + ".html"


def make(root, reference, output, config_file=WEBSITE / "mkdocs.yml"):
    """Builds the site of a tree into a folder; returns what is wrong with it."""
    complaints = Complaints()
    logging.getLogger("mkdocs").addHandler(complaints)
    try:
        with tempfile.TemporaryDirectory(prefix="holon-site-") as folder:
            pages = Pages(root, reference, Path(folder))
            (Path(folder) / "assets").mkdir()
            shutil.copyfile(WEBSITE / "extra.css", Path(folder) / "assets/extra.css")
            aside = "\n".join(f"/{page}" for page in pages.sources)
            config = load_config(str(config_file), docs_dir=folder, site_dir=str(output), not_in_nav=aside)
            config.nav = with_folders(config.nav, pages.origin)
            config.copyright = f"Holon {version(root)}"
            build(config)
    except (Abort, ConfigurationError) as error:
        return [*complaints.found, str(error)]
    finally:
        logging.getLogger("mkdocs").removeHandler(complaints)
    # A page that the menu lacks is missing on every page.
    return complaints.found or links.broken(output, {built_name(page): source for page, source in pages.origin.items()})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--reference", type=Path, default=ROOT / "docs/reference", help="what generate_reference.py has written"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "build/site", help="where the site goes")
    args = parser.parse_args()
    if not (args.reference / "README.md").exists():
        parser.error(f"there is no reference in {args.reference}: run ./dev docs, which writes it")
    problems = make(ROOT, args.reference.resolve(), args.output.resolve())
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        sys.exit(f"the site has {len(problems)} fault{'s' if len(problems) > 1 else ''}: see above")
    count = sum(1 for _ in args.output.rglob("*.html"))
    print(f"{args.output}: {count} pages. To look at them: python3 -m http.server -d {args.output}")


if __name__ == "__main__":
    main()
