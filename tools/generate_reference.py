#!/usr/bin/env python3
"""Writes docs/reference/ from what the library itself declares: ops.md from the registry, settings.md from the settings' table.

  .venv/bin/python tools/generate_reference.py [FOLDER]
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTE = "Written by `./dev docs`; changes belong into the declarations.\n"


def rooms():
    """op -> the source file of holon/ops or holon/nn that declares it."""
    found = {}
    for path in sorted([*(ROOT / "holon/ops").glob("*.cpp"), *(ROOT / "holon/nn").glob("*.cpp")]):
        for kind, name in re.findall(r"^\s*HOLON_(OP|UNARY|BINARY)\(\s*(\w+)", path.read_text(), re.M):
            found[name] = path
            if kind == "BINARY":
                found[name + "_scalar"] = path
    return found


def cell(text):
    return text.replace("|", "\\|").replace("\n", " ")


def traits(op):
    words = [w for w, on in (("gradient", op["has_grad"]), (f"in place: `{op['name']}_`", op["in_place"]),
                             ("lets partial sums through", op["linear"]), ("random", op["random"])) if on]
    if not op["function"]:
        words.append("method only")
    elif not op["method"]:
        words.append("function only")
    if op["aliases"]:
        words.append("also " + ", ".join(f"`{a}`" for a in op["aliases"]))
    return "; ".join(words)


def rule(op):
    if op["composed"]:
        return "made of other ops"
    text = op["rule"]
    return f"`{text}`" if text and not text.startswith("whole") else text


def ops_page(table):
    """The page, and the number of ops on it. Hidden ops, which only gradients and bodies call, are left out."""
    shown = [op for op in table if op["function"] or op["method"]]
    where = rooms()
    pages = {}
    for op in shown:
        pages.setdefault(where.get(op["name"]), []).append(op)
    lines = ["# Ops", "", NOTE, f"{len(shown)} ops. Each is a function of `holon` and, if its first argument is a tensor, a method of `Tensor`.",
             "The rule says how it is divided, in factors: an axis whose factor stands in the result may be split in all operands that "
             "carry the factor; one that stands in the operands alone is contracted, and leaves a partial sum where it is split.", ""]
    for path in sorted(pages, key=lambda p: p.stem if p else "~"):
        title = f"{path.stem} ({path.relative_to(ROOT)})" if path else "others"
        lines += [f"## {title}", "", "| signature | what it does | rule | |", "| --- | --- | --- | --- |"]
        for op in sorted(pages[path], key=lambda o: o["name"]):
            doc = cell(op["doc"]) + (f" Example: `{cell(op['example'])}`" if op["example"] else "")
            lines.append(f"| `{cell(op['signature'])}` | {doc} | {cell(rule(op))} | {cell(traits(op))} |")
        lines.append("")
    return "\n".join(lines), len(shown)


def settings_page():
    text = (ROOT / "holon/base/settings.cpp").read_text()
    rows = re.findall(r'\{"(HOLON_\w+)",\s*"([^"]*)",\s*((?:"(?:[^"\\]|\\.)*"\s*)+)\}', text)
    lines = ["# Settings", "", NOTE, "Environment variables, read when they are first needed.", "", "| name | default | meaning |",
             "| --- | --- | --- |"]
    for name, default, doc in sorted(rows):
        doc = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', doc)).replace('\\"', '"')
        lines.append(f"| `{name}` | {f'`{default}`' if default else 'empty'} | {cell(doc)} |")
    return "\n".join([*lines, ""]), len(rows)


def main():
    import holon

    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/reference"
    folder.mkdir(parents=True, exist_ok=True)
    ops, n_ops = ops_page(holon._C.op_table())
    settings, n_settings = settings_page()
    (folder / "ops.md").write_text(ops)
    (folder / "settings.md").write_text(settings)
    print(f"{folder}: {n_ops} ops, {n_settings} settings")


if __name__ == "__main__":
    main()
