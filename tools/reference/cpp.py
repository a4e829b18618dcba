"""The pages of the C++ API: every public class and function of the headers that holon/holon.h includes, with the
comments above them. libclang reads the headers; a public name without a comment is a problem."""

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from clang import cindex
from clang.cindex import AccessSpecifier, CursorKind

from .ops import ROOT

GENERATED = ROOT / "build/dev/generated"
# Page: its title, what is on it, and the headers, in order.
PAGES = {
    "tensors": (
        "Tensors",
        "Tensors, their values and their text. Functions of tensors are [ops](../ops.md).",
        [
            "tensor/tensor.h",
            "ops/values.h",
            "ops/indexing.h",
            "ops/operators.h",
            "array/dtype.h",
            "array/scalar.h",
            "array/dims.h",
            "array/device.h",
            "tensor/print.h",
            "tensor/visualize.h",
        ],
    ),
    "placements": (
        "Placements and sbps",
        "Which ranks hold a global tensor, how it is divided, and what moves.",
        ["global/placement.h", "global/sbp.h", "global/nd_sbp.h", "boxing/planner.h", "boxing/events.h"],
    ),
    "ranks": (
        "Ranks and errors",
        "This rank, its world, ranks as threads, and the errors that all functions raise.",
        ["holon.h", "comm/run_ranks.h", "base/context.h", "base/error.h", "comm/core/communicator.h"],
    ),
    "autograd": (
        "Gradients, random numbers, ops by name",
        "The backward pass, functions with their own gradient, automatic casts, and ops of your own libraries.",
        [
            "autograd/engine.h",
            "autograd/function.h",
            "dispatch/autocast.h",
            "dispatch/dispatch.h",
            "registry/library.h",
        ],
    ),
    "nn": (
        "Modules",
        "Layers, losses and initialisers. A layer whose entry names an op computes what the op does.",
        [f"nn/{name}.h" for name in ("module", "containers", "linear", "conv", "pooling", "norm", "activation")]
        + [f"nn/{name}.h" for name in ("dropout", "sparse", "rnn", "attention", "vision", "loss", "init", "layers")],
    ),
    "optim": (
        "Optimizers",
        "Optimizers, their rules and options, clipping, learning rates and the scaling of losses.",
        [f"optim/{name}.h" for name in ("optimizer", "update", "rule", "clip", "schedule", "grad_scaler")],
    ),
    "graph": (
        "Graphs",
        "`nn::Graph` and its options. The intermediate representation is described in "
        "docs/guides/adding-a-pass.md.",
        ["graph/nn_graph.h", "graph/options/options.h"],
    ),
    "data": (
        "Data",
        "Data sets, loaders and readers.",
        [f"data/{n}.h" for n in ("loader", "sampler", "place", "idx", "mnist", "corpus", "synthetic_digits", "join")],
    ),
    "checkpoint": ("Saving and loading", "Files of values.", ["checkpoint/checkpoint.h", "checkpoint/value.h"]),
}
# What holon/holon.h includes that has its own pages.
ELSEWHERE = {"ops.h"}
CLASSES = {CursorKind.CLASS_DECL, CursorKind.STRUCT_DECL, CursorKind.CLASS_TEMPLATE}
FUNCTIONS = {
    CursorKind.FUNCTION_DECL,
    CursorKind.FUNCTION_TEMPLATE,
    CursorKind.CXX_METHOD,
    CursorKind.CONSTRUCTOR,
    CursorKind.DESTRUCTOR,
    CursorKind.CONVERSION_FUNCTION,
}
ALIASES = {CursorKind.TYPE_ALIAS_DECL, CursorKind.TYPE_ALIAS_TEMPLATE_DECL, CursorKind.TYPEDEF_DECL}
VARIABLES = {CursorKind.FIELD_DECL, CursorKind.VAR_DECL}
NOT_PUBLIC = ("detail", "internal")


@dataclass
class Entry:
    """One declaration: its text, its comment, and of a class or namespace the declarations in it."""

    name: str
    kind: str  # class, enum, function, variable, alias
    text: str
    doc: str
    header: str
    line: int
    end: int
    scope: str  # "nn" of holon::nn::Linear
    inside: list = field(default_factory=list)
    documented: bool = True  # by its own comment, or that of the group that it is in


class Header:
    """A header's text, and the comments in it."""

    def __init__(self, path):
        self.lines = path.read_text().splitlines()
        self.text = "\n".join(self.lines) + "\n"

    def above(self, line):
        """The comment that ends on the line before this one (from 1)."""
        first = line - 1
        while first > 0 and self.lines[first - 1].lstrip().startswith("//"):
            first -= 1
        return self._words(self.lines[first : line - 1])

    def behind(self, line, column):
        """The comment behind a declaration that ends there, with the lines that go on with it."""
        m = re.match(r"[;,]?\s*(//.*)$", self.lines[line - 1][column - 1 :])
        if not m:
            return ""
        found = [m[1]]
        at = self.lines[line - 1].index(m[1], column - 1)
        for following in self.lines[line:]:
            if following[:at].strip() or not following[at:].startswith("//"):
                break
            found.append(following[at:])
        return self._words(found)

    @staticmethod
    def _words(lines):
        """Paragraphs, lists and examples of a comment as Markdown."""
        parts, code = [], []
        for line in (x.strip().removeprefix("//") for x in lines):
            if re.match(r" {2,}(?!-)\S", line) or (code and not line.strip()):
                code.append(line[3:])
                continue
            if code:
                parts += ["", "```c++", *code, "```", ""]
                code = []
            parts.append(line.strip())
        if code:
            parts += ["", "```c++", *code, "```", ""]
        return "\n".join(parts).strip()


def without_body(text):
    """A declaration without what defines it: a body in braces, a constructor's list, = default."""
    depth, out = 0, ""
    for i, c in enumerate(text):
        if depth == 0 and (c in "{;" or (c == ":" and text[i - 1] == " " and ")" in out)):
            break
        depth += (c in "([") - (c in ")]")
        if c in "{}":
            depth += 1 if c == "{" else -1
        out += c
    out = re.sub(r"\s+", " ", out).strip()
    out = re.sub(r"^(inline|virtual) ", "", re.sub(r" (override|= default|= 0)$", "", out))
    return out.replace("( ", "(")


class Reader:
    """Reads all headers at once."""

    def __init__(self):
        arguments = ["-x", "c++", "-std=c++20", f"-I{ROOT}", f"-I{GENERATED}", "-isystem", builtin_headers()]
        unit = cindex.Index.create().parse(
            str(ROOT / "holon/holon.h"),
            [*arguments, "-DFMT_SHARED"],
            options=cindex.TranslationUnit.PARSE_SKIP_FUNCTION_BODIES,
        )
        wrong = [d for d in unit.diagnostics if d.severity >= cindex.Diagnostic.Error]
        if wrong:
            raise RuntimeError(f"libclang does not read the headers: {wrong[0]}")
        self.headers, self.entries = {}, []
        self._walk(unit.cursor, "", self.entries)

    def of(self, header):
        return [e for e in self.entries if e.header == header]

    def _header(self, cursor):
        path = Path(cursor.location.file.name) if cursor.location.file else None
        if not path or not path.is_relative_to(ROOT / "holon"):
            return None, None
        name = str(path.relative_to(ROOT / "holon"))
        if name not in self.headers:
            self.headers[name] = Header(path)
        return name, self.headers[name]

    def _walk(self, cursor, scope, into):
        for c in cursor.get_children():
            if c.kind == CursorKind.NAMESPACE:
                if c.spelling in NOT_PUBLIC:
                    continue
                name, _ = self._header(c)
                if name:
                    inner = "" if c.spelling == "holon" and not scope else f"{scope}{c.spelling}::"
                    self._walk(c, inner, into)
            elif c.kind == CursorKind.LINKAGE_SPEC or c.semantic_parent != c.lexical_parent:
                continue
            elif cursor.kind != CursorKind.TRANSLATION_UNIT:
                self._add(c, scope, into)

    def _add(self, c, scope, into):
        name, header = self._header(c)
        if not header or c.access_specifier in (AccessSpecifier.PRIVATE, AccessSpecifier.PROTECTED):
            return
        start, end = c.extent.start, c.extent.end
        text = header.text.encode()[start.offset : end.offset].decode()
        kind = None
        if c.kind in CLASSES and c.is_definition() and "{" in text:  # not one that a macro makes
            kind = "class"
        elif c.kind == CursorKind.ENUM_DECL and c.is_definition():
            kind, text = "enum", re.sub(r"\s+", " ", re.sub(r"//[^\n]*", "", text))
        elif c.kind in FUNCTIONS:
            kind = "function"
        elif c.kind in VARIABLES:
            kind = "variable"
        elif c.kind in ALIASES:
            kind = "alias"
        if not kind or c.spelling.endswith("_") or "= delete" in header.lines[end.line - 1][start.column - 1 :]:
            return
        # The comment of a function with a body is above it, that of a declaration may be behind it.
        behind = header.behind(end.line, end.column) if kind != "class" else ""
        own = "\n\n".join(filter(None, [header.above(start.line), behind]))
        entry = Entry(
            c.spelling, kind, text if kind == "enum" else without_body(text), own, name, start.line, end.line, scope
        )
        before = into[-1] if into else None
        if not own and before and before.header == name and before.end + 1 >= start.line:
            entry.documented = before.documented  # the group's comment is above its first line
        else:
            entry.documented = bool(own)
        if kind == "class":
            entry.text = re.sub(r"\s+", " ", text[: text.index("{")]).strip()
            for inner in c.get_children():
                self._add(inner, f"{scope}{c.spelling}::", entry.inside)
        if not any(e.line == entry.line and e.header == name and e.name == entry.name for e in into):
            into.append(entry)


def builtin_headers():
    """GCC's headers of the language itself, such as <stddef.h>, which libclang comes without."""
    return subprocess.check_output(["g++", "-print-file-name=include"], text=True).strip()


def implied(entry, owner):
    """Whether a member needs no words: construction, assignment, and what a base class or the class itself documents."""
    name = entry.name.split("<")[0]
    if entry.kind in ("variable", "alias", "enum") or name in ("forward", "begin", "end", "str"):
        return True
    return name == owner.name.split("<")[0] or name.startswith(("~", "operator"))


def undocumented(entry, owner=None):
    """The names without a comment: the declaration's, and those of its members."""
    found = []
    if not entry.documented and not (owner and implied(entry, owner)):
        found.append(f"{entry.scope}{entry.name}")
    for inner in entry.inside:
        found += undocumented(inner, entry)
    return found


def grouped(entries):
    """Lists of the declarations that share a comment: each with the ones below it that have none."""
    groups = []
    for entry in entries:
        joined = groups and not entry.doc and groups[-1][-1].end + 1 >= entry.line and entry.kind != "class"
        if joined and groups[-1][-1].kind != "class":
            groups[-1].append(entry)
        else:
            groups.append([entry])
    return groups


def members(entry):
    """The lines of a class's members."""
    lines = []
    for group in grouped([e for e in entry.inside if e.kind != "class"]):
        words = "\n\n".join(filter(None, (e.doc for e in group)))
        code = "<br>".join(f"`{e.text}`" for e in group)
        if "```" in words or "\n- " in words:
            lines += [f"- {code}", "", *(f"    {x}".rstrip() for x in words.splitlines()), ""]
        else:
            lines.append(f"- {code}" + (f": {' '.join(words.split())}" if words else ""))
    return lines


def class_section(entry, title, operations, depth="##"):
    doc = entry.doc
    lines = [f"{depth} {title}", "", "```c++", entry.text, "```", ""]
    if not doc and title.lower() in operations:
        doc = f"As the op [{operations[title.lower()]}](../ops.md)."
    lines += [doc, ""] if doc else []
    lines += [f"`#include <holon/{entry.header}>`", ""] if depth == "##" else []
    lines += [*members(entry), ""]
    for inner in (e for e in entry.inside if e.kind == "class" and (e.doc or e.inside)):
        lines += class_section(inner, f"{title}::{inner.name}", operations, "###")
    return lines


def op_names():
    """{class's name in lower case: op} for layers that are named as an op is."""
    from holon import _C

    return {row["public_name"].replace("_", ""): row["public_name"] for row in _C.op_table() if row["function"]}


def page(title, words, entries, note, problems, operations):
    lines = [f"# {title}", "", note, words, ""]
    shown = set()
    for entry in (e for e in entries if e.kind == "class"):
        if entry.name in shown:
            problems.append(f"{entry.header}: two classes {entry.name} on one page")
        shown.add(entry.name)
    groups = grouped([e for e in entries if e.kind != "class"])
    classes = [e for e in entries if e.kind == "class"]
    if classes:
        lines += ["Classes: " + ", ".join(f"[{e.name}](#{e.name.lower()})" for e in classes) + ".", ""]
    if groups:
        lines += ["[Functions](#functions).", ""] if classes else []
    for entry in classes:
        lines += class_section(entry, entry.name, operations)
    if groups:
        lines += ["## Functions", ""]
    for group in groups:
        words = "\n\n".join(filter(None, (e.doc for e in group)))
        code = [(f"// namespace {e.scope[:-2]}\n" if e.scope and e is group[0] else "") + e.text + ";" for e in group]
        lines += ["```c++", *code, "```", "", words, "", f"`#include <holon/{group[0].header}>`", ""]
    return "\n".join(lines)


def missing_headers():
    """What holon/holon.h includes and no page shows."""
    shown = {h for _, _, headers in PAGES.values() for h in headers} | ELSEWHERE
    text = (ROOT / "holon/holon.h").read_text()
    return [h for h in re.findall(r'^#include "holon/([^"]+)"', text, re.M) if h not in shown]


def pages(note, problems):
    """({path in the reference: text}, the number of classes)"""
    reader, operations, made, count = Reader(), op_names(), {}, 0
    problems += [f"holon/{h}: no page of the C++ reference shows it (tools/reference/cpp.py)" for h in missing_headers()]
    index = ["# C++ reference", "", note, CONTENTS, "", "| page | classes | functions |", "| --- | --- | --- |"]
    for name, (title, words, headers) in PAGES.items():
        entries = [e for h in headers for e in reader.of(h)]
        for entry in entries:
            if entry.kind == "class" and entry.name.lower() in operations and entry.header.startswith("nn/"):
                entry.documented = True
            problems += [f"holon/{entry.header}: no comment on the public name {n}" for n in undocumented(entry)]
        made[f"cpp/{name}.md"] = page(title, words, entries, note, problems, operations)
        classes = [e for e in entries if e.kind == "class"]
        count += len(classes)
        listed = ", ".join(f"[{e.name}]({name}.md#{e.name.lower()})" for e in classes)
        others = sorted({e.name for e in entries if e.kind == "function" and not e.name.startswith("operator")})
        index.append(f"| [{title}]({name}.md) | {listed} | {', '.join(f'`{n}`' for n in others)} |")
    made["cpp/README.md"] = "\n".join([*index, ""])
    return made, count


CONTENTS = """The classes and functions of `#include <holon/holon.h>`, from the comments in its headers. All names are in namespace
`holon`. The functions of tensors are [ops](../ops.md), which `holon/ops.h` declares with their documentation. What is
public, and what a release may change, is explained in `docs/guides/versioning.md`."""
