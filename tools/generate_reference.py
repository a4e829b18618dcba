#!/usr/bin/env python3
"""Writes docs/reference/ from what the library itself declares: ops.md and ops/ from the registry, modules.md and
optim.md from the classes, settings.md from the settings' table. Every example is run; what fails or lacks is listed,
and the exit status is 1.

  .venv/bin/python tools/generate_reference.py [FOLDER]
"""

import os
import sys
import warnings
from pathlib import Path

# Before holon is loaded: devices that are only simulated are observed too.
os.environ.setdefault("HOLON_SIMULATE", "cuda")

from reference import classes, ops  # noqa: E402

import holon  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
NOTE = "Written by `./dev docs`; changes belong into the declarations.\n"


def settings_page():
    table = sorted(holon._C.settings())
    lines = [
        "# Settings",
        "",
        NOTE,
        "Environment variables, read when they are first needed.",
        "",
        "| name | default | meaning |",
        "| --- | --- | --- |",
    ]
    for name, default, doc in table:
        lines.append(f"| `{name}` | {f'`{default}`' if default else 'empty'} | {ops.cell(doc)} |")
    return "\n".join([*lines, ""]), len(table)


def index_page(made):
    lines = [
        "# Reference",
        "",
        NOTE,
        f"- [Ops](ops.md): {made['ops']} functions of `holon` and methods of `Tensor`, with their signatures of sbp",
        f"- [Modules](modules.md): {made['modules']} classes of `holon.nn`, functional, init",
        f"- [Optimizers and schedules](optim.md): {made['optim']} classes of `holon.optim`",
        f"- [Settings](settings.md): {made['settings']} environment variables",
        "",
    ]
    return "\n".join(lines)


def main():
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/reference"
    problems, counts = [], {}
    holon.set_printoptions(prefix="flow")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pages, counts["ops"] = ops.pages(NOTE, problems)
        pages["modules.md"], counts["modules"] = classes.modules_page(NOTE, problems)
        pages["optim.md"], counts["optim"] = classes.optim_page(NOTE, problems)
    pages["settings.md"], counts["settings"] = settings_page()
    pages["README.md"] = index_page(counts)
    for path in folder.glob("ops/*.md"):
        path.unlink()  # of rooms that there were
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    print(f"{folder}: " + ", ".join(f"{n} {what}" for what, n in counts.items()))
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
