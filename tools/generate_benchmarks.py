#!/usr/bin/env python3
"""Brings the tables of docs/benchmarks.md up to date. A table is between `<!-- begin FILE -->` and `<!-- end -->` and
shows FILE, which `./dev bench --save FILE` has written.

  .venv/bin/python tools/generate_benchmarks.py [PAGE]
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = re.compile(r"(<!-- begin (\S+) -->\n).*?(<!-- end -->)", re.S)


def number(value):
    """Three digits, without an exponent."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(text):
    """The table of a file's lines."""
    machine, *rows = [json.loads(line) for line in text.splitlines()]
    lines = [
        "{command}: {machine}, {cores} cores, load {load} when it began, {build} build of {commit}, {date}.".format(
            **machine | {"command": f"`{machine['command']}`"}
        ),
        "",
        "| what | Holon | compared with | ratio |",
        "| --- | --- | --- | --- |",
    ]
    for row in rows:
        ratio = "" if row["ratio"] is None else number(row["ratio"])
        words = [row["name"], f"{number(row['value'])} {row['unit']}", row["against"] or "", ratio]
        lines.append("| " + " | ".join(word.replace("|", "\\|") for word in words) + " |")
    return "\n".join(lines)


def updated(page, root=ROOT):
    """The page's text with its tables as the files have them. Errors: a missing file, or a page without a table."""

    def filled(found):
        path = root / found.group(2)
        if not path.exists():
            raise FileNotFoundError(
                f"{found.group(2)} is named in the page and not there: ./dev bench --save {found.group(2)}"
            )
        return f"{found.group(1)}\n{table(path.read_text())}\n\n{found.group(3)}"

    text, count = TABLE.subn(filled, page)
    if not count:
        raise ValueError("the page has no table: put <!-- begin FILE --> and <!-- end --> where it belongs")
    return text


if __name__ == "__main__":
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/benchmarks.md"
    path.write_text(updated(path.read_text()))
