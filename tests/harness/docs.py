"""The code blocks of a Markdown page, and the comparison of what they print with what the page says."""

import re
from dataclasses import dataclass
from pathlib import Path

from . import ranks

FENCE = re.compile(r"^(\s*)(`{3,})\s*(.*)$")


@dataclass
class Block:
    language: str
    options: dict  # of the fence: ```python ranks=2
    text: str
    line: int  # of the fence, from 1
    expected: str | None = None  # the ```text fence that follows
    page: Path | None = None


def blocks(page):
    """All fenced blocks of a page in order; a text fence right after a python or cpp one (blank lines or one line of
    words between them do not matter) is that one's expected output and no block of its own."""
    found, lines, i = [], page.splitlines(), 0
    while i < len(lines):
        m = FENCE.match(lines[i])
        if not m:
            i += 1
            continue
        indent, ticks, info = m.groups()
        start, body = i, []
        i += 1
        while i < len(lines) and lines[i].strip() != ticks:
            body.append(lines[i].removeprefix(indent))
            i += 1
        if i == len(lines):
            raise ValueError(f"line {start + 1}: the fence is never closed")
        i += 1
        words = info.split()
        options = dict(w.split("=", 1) if "=" in w else (w, True) for w in words[1:])
        language = words[0] if words else ""
        text = "\n".join(body) + "\n"
        previous = found[-1] if found else None
        if language == "text" and previous and previous.language in ("python", "cpp") and previous.expected is None:
            previous.expected = text
        else:
            found.append(Block(language, options, text, start + 1))
    return found


def of_pages(pages, language):
    """The blocks of a language that run, each with its page."""
    found = []
    for page in pages:
        for block in blocks(page.read_text()):
            if block.language == language and "no-run" not in block.options:
                block.page = page
                found.append(block)
    return found


def run_python(block, folder, **environment):
    """Runs a block as its fence says and compares what it prints."""
    program = folder / "block.py"
    program.write_text(block.text)
    for other in blocks(block.page.read_text()):
        if "file" in other.options:
            (folder / other.options["file"]).write_text(other.text)
    n = int(block.options.get("ranks", 1))
    start = ranks.launch if n > 1 else ranks.run
    done = start(program, *([n] if n > 1 else []), cwd=folder, HOME=folder, **environment)
    assert done.returncode == 0, done.stderr
    if block.expected is not None:
        why = differs(block.expected, done.stdout, ordered=n == 1)
        assert why is None, why


def line_pattern(line):
    return re.compile(".*".join(re.escape(part) for part in line.rstrip().split("...")))


def in_order(want, got):
    """Whether the lines match one after the other; a line of `...` alone matches any number of them."""
    if not want:
        return not got
    if want[0].strip() == "...":
        return any(in_order(want[1:], got[i:]) for i in range(len(got) + 1))
    return bool(got) and bool(line_pattern(want[0]).fullmatch(got[0])) and in_order(want[1:], got[1:])


def differs(expected, printed, ordered):
    """Why `printed` is not what the page says, or None. `...` matches any text: within a line, or, alone on a line,
    for any lines. Ranks print in no order among each other: unordered, every line expected must be there once, and no
    other."""
    want, got = expected.strip().splitlines(), [x.rstrip() for x in printed.strip().splitlines()]
    if ordered:
        return None if in_order(want, got) else f"expected:\n{expected}\nprinted:\n{printed}"
    rest = list(got)
    # Lines without a wildcard first, so that one with a wildcard does not take what another needs.
    for w in sorted((w for w in want if w.strip() != "..."), key=lambda w: "..." in w):
        hit = next((g for g in rest if line_pattern(w).fullmatch(g)), None)
        if hit is None:
            return f"no rank printed: {w}\nprinted:\n{printed}"
        rest.remove(hit)
    if rest and not any(w.strip() == "..." for w in want):
        return "printed, but not expected:\n" + "\n".join(rest)
    return None
