"""The pages of the C++ API: every public class and function of the headers that holon/holon.h and holon/models.h
include, with the comments above them. libclang reads the headers; a public name without a comment is a problem."""

import re
import subprocess
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

from clang import cindex
from clang.cindex import AccessSpecifier, CursorKind

ROOT = Path(__file__).resolve().parent.parent.parent

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
            "tensor/indexing.h",
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
        ["tensor.h", "global/placement.h", "global/sbp.h", "global/nd_sbp.h", "boxing/planner.h", "boxing/events.h"]
        + ["contract/contract.h"],
    ),
    "ranks": (
        "Ranks and errors",
        "This rank, its world, ranks as threads, and the errors that all functions raise.",
        ["base/rank.h", "comm/run_ranks.h", "comm/core/context_handoff.h", "base/context.h", "base/error.h"],
    ),
    "autograd": (
        "Gradients, random numbers, ops by name",
        "The backward pass, functions with their own gradient, automatic casts, and ops of your own libraries.",
        [
            "autograd/engine.h",
            "autograd/function.h",
            "dispatch/autocast.h",
            "dispatch/deterministic.h",
            "dispatch/random_state.h",
            "dispatch/call.h",
            "registry/library.h",
        ],
    ),
    "nn": (
        "Modules",
        "Layers, losses and initialisers. A layer whose entry names an op computes what the op does.",
        [f"nn/{name}.h" for name in ("module", "member", "shared", "containers", "linear", "conv", "pooling", "norm")]
        + [f"nn/{name}.h" for name in ("activation", "dropout", "sparse", "rnn", "attention", "vision", "loss", "init")]
        + ["nn/layers.h"],
    ),
    "optim": (
        "Optimizers",
        "Optimizers, their rules and options, clipping, learning rates and the scaling of losses.",
        [f"optim/{name}.h" for name in ("optimizer", "update", "rule", "clip", "schedule", "grad_scaler", "relayout")],
    ),
    "graph": (
        "Graphs",
        "`nn::Graph` and its options. The intermediate representation is described in docs/guides/adding-a-pass.md.",
        ["graph/nn_graph.h", "graph/graph_config.h", "graph/step_stats.h", "graph/options/options.h"],
    ),
    "data": (
        "Data",
        "Data sets, loaders and readers.",
        [f"data/{n}.h" for n in ("loader", "batches", "sampler", "place", "idx", "mnist", "corpus")]
        + ["data/synthetic_digits.h", "data/join.h"],
    ),
    "exports": (
        "Exports to Python",
        "Modules and functions of C++ libraries for Python.",
        ["exports/python.h", "exports/value.h"],
    ),
    "checkpoint": (
        "Saving and loading",
        "Files of values, checkpoints of a training run, and weights from job to job.",
        [
            "checkpoint/checkpoint.h",
            "checkpoint/checkpointer.h",
            "checkpoint/transfer.h",
            "checkpoint/verify.h",
            "checkpoint/core/value.h",
            "checkpoint/core/key_map.h",
        ],
    ),
    "models": (
        "Models",
        "Models from checkpoints of transformers, and the parts that they are made of: `#include <holon/models.h>`.",
        [f"models/{name}.h" for name in ("pretrained", "model", "generate", "layout", "config", "inputs", "weights")]
        + [f"models/{name}.h" for name in ("kv_cache", "sampling", "logits", "attention", "rotary", "layers", "loss")]
        + [
            f"models/{name}.h"
            for name in ("moe", "router_loss", "llama", "deepseek", "gpt2", "bert", "t5", "vit", "resnet")
        ],
    ),
}
# The headers that include all others.
UMBRELLAS = ["holon.h", "models.h"]
# What holon/holon.h includes that has its own pages.
ELSEWHERE = {"ops.h"}
CLASSES = {CursorKind.CLASS_DECL, CursorKind.STRUCT_DECL, CursorKind.CLASS_TEMPLATE}
FUNCTIONS = {
    CursorKind.FUNCTION_DECL,
    CursorKind.FUNCTION_TEMPLATE,
    CursorKind.CXX_METHOD,
    CursorKind.CONSTRUCTOR,
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
    shared: bool  # the comment is above, and so for the lines below, too
    header: str
    line: int
    end: int
    scope: str  # "nn::" of holon::nn::Linear
    documented: bool  # by its own comment, or that of the group that it is in
    inside: list = field(default_factory=list)
    overrides: bool = False  # a function of a base class, which has the comment
    protected: bool = False  # for classes that derive from it


class Header:
    """A header's text, and the comments in it."""

    def __init__(self, path):
        self.lines = path.read_text().splitlines()
        self.text = "\n".join(self.lines) + "\n"

    def above(self, line):
        """The comment that ends on the line before this one (from 1), and is indented as it is."""
        text, first = self.lines[line - 1], line - 1
        start = text[: len(text) - len(text.lstrip())] + "//"
        while first > 0 and self.lines[first - 1].startswith(start):
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
        """Paragraphs, lists and examples of a comment as Markdown. Lines that are indented are code; in a list they
        belong to its item."""
        parts, code, in_list = [], [], False

        def end_code():
            if code:
                parts.extend(["", "```c++", *textwrap.dedent("\n".join(code)).strip("\n").splitlines(), "```", ""])
                code.clear()

        for line in (x.strip().removeprefix("//") for x in lines):
            indented = re.match(r" {2,}\S", line)
            if re.match(r" *- ", line):
                end_code()
                parts += ([] if in_list else [""]) + [line.strip()]
                in_list = True
            elif in_list and indented:
                parts.append("  " + line.strip())
            elif indented or (code and not line.strip()):
                code.append(line)
            else:
                end_code()
                parts += ([""] if in_list else []) + [line.strip()]
                in_list = False
        end_code()
        return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).strip()


def without_body(text):
    """A declaration without what defines it: a body in braces, a constructor's list, = default."""
    depth, out = 0, ""
    for i, c in enumerate(text):
        if depth == 0 and (c in "{;" or (c == ":" and text[i - 1] == " " and ")" in out)):
            break
        depth += (c in "([") - (c in ")]")
        depth += (c == "{") - (c == "}")
        out += c
    out = re.sub(r"\s+", " ", out).strip()
    out = re.sub(r"^(inline|virtual) ", "", re.sub(r" (override|= default|= 0)$", "", out))
    return out.replace("( ", "(")


class Reader:
    """Reads all headers of a tree at once."""

    def __init__(self, root=ROOT):
        self.root = root
        arguments = ["-x", "c++", "-std=c++20", f"-I{root}", f"-I{GENERATED}", "-isystem", builtin_headers()]
        there = [name for name in UMBRELLAS if (root / "holon" / name).exists()]
        text = "".join(f"#include <holon/{name}>\n" for name in there)
        unit = cindex.Index.create().parse("all.cpp", arguments, [("all.cpp", text)])
        wrong = [d for d in unit.diagnostics if d.severity >= cindex.Diagnostic.Error]
        if wrong:
            raise RuntimeError(f"libclang does not read the headers: {wrong[0]}")
        self.headers, self.entries = {}, []
        self._walk(unit.cursor, "", self.entries)

    def of(self, header):
        return [e for e in self.entries if e.header == header]

    def _header(self, cursor):
        path = Path(cursor.location.file.name) if cursor.location.file else None
        if not path or not path.is_relative_to(self.root / "holon"):
            return None, None
        name = str(path.relative_to(self.root / "holon"))
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
            elif c.semantic_parent != c.lexical_parent or (c.kind in FUNCTIONS and c.canonical != c):
                continue  # a definition of what is declared above
            elif cursor.kind != CursorKind.TRANSLATION_UNIT:
                self._add(c, scope, into)

    def _add(self, c, scope, into):
        name, header = self._header(c)
        if not header or c.access_specifier == AccessSpecifier.PRIVATE:
            return
        start, end = c.extent.start, c.extent.end
        text = header.text.encode()[start.offset : end.offset].decode()
        kind = None
        if c.kind in CLASSES and c.is_definition() and "{" in text:  # not one that a macro makes
            kind = "class"
        elif c.kind == CursorKind.ENUM_DECL and c.is_definition():
            kind, text = "enum", re.sub(r"//[^\n]*", "", text)
        elif c.kind in FUNCTIONS:
            kind = "function"
        elif c.kind in VARIABLES:
            kind = "variable"
        elif c.kind in ALIASES:
            kind = "alias"
        copies = c.spelling == "operator=" or c.is_copy_constructor() or c.is_move_constructor()
        member_ = kind == "variable" and c.spelling.endswith("_")
        if not kind or copies or member_ or text.endswith("= delete") or text.startswith("template <>"):
            return
        behind = header.behind(end.line, end.column) if kind != "class" else ""
        above = header.above(start.line)
        if kind == "class" and not above and is_about(name, c.spelling):
            above = header.above(header.lines.index("#pragma once") + 1)
        before = into[-1] if into else None
        if kind == "variable" and before and before.kind == kind and (before.header, before.line) == (name, start.line):
            before.text, before.doc = declaration(kind, text), before.doc or behind  # int a, b;
            return
        own = "\n\n".join(filter(None, [above, behind]))
        entry = Entry(
            c.spelling, kind, declaration(kind, text), own, bool(above), name, start.line, end.line, scope, bool(own)
        )
        entry.overrides = " override" in text
        entry.protected = c.access_specifier == AccessSpecifier.PROTECTED
        if not own and continues(before, entry):
            entry.documented, entry.shared = before.shared, before.shared
        if kind == "class":
            entry.text = re.sub(r"\s+", " ", text[: text.index("{")]).strip()
            for inner in c.get_children():
                self._add(inner, f"{scope}{c.spelling}::", entry.inside)
        if not any(e.line == entry.line and e.header == name and e.name == entry.name for e in into):
            into.append(entry)


def declaration(kind, text):
    if kind in ("enum", "alias"):
        return re.sub(r"\s+", " ", text).strip()
    if kind == "variable":
        return re.sub(r"\s+", " ", re.sub(r"( = )?\{\}$", "", text)).removeprefix("inline constexpr ").strip()
    return without_body(text)


def continues(before, entry):
    """Whether a declaration is directly below another one, so that a comment above that one is for both."""
    return bool(before) and before.header == entry.header and before.end + 1 >= entry.line


def builtin_headers():
    """GCC's headers of the language itself, such as <stddef.h>, which libclang comes without."""
    return subprocess.check_output(["g++", "-print-file-name=include"], text=True).strip()


def is_about(header, name):
    """Whether the comment at the head of a file documents the class: tensor.h's Tensor, loader.h's DataLoader."""
    stem, name = Path(header).stem.replace("_", ""), name.lower()
    return stem.endswith(name) or name.endswith(stem)


def implied(entry, owner):
    """Whether a member needs no words: data, construction, and what a base class or the class itself documents."""
    name = entry.name.split("<")[0]
    if entry.overrides or entry.kind in ("variable", "alias", "enum"):
        return True
    return name in ("forward", "begin", "end", "str", owner.name.split("<")[0]) or name.startswith("operator")


def undocumented(entry, owner=None):
    """The names without a comment: the declaration's, and those of its members."""
    found = []
    if not entry.documented and not (implied(entry, owner) if owner else entry.name.endswith("Options")):
        found.append(f"{entry.scope}{entry.name}")
    for inner in entry.inside:
        found += undocumented(inner, entry)
    return found


def grouped(entries):
    """Lists of the declarations that share a comment: each with the ones below it that have none."""
    groups = []
    for entry in entries:
        if groups and not entry.doc and entry.shared and continues(groups[-1][-1], entry):
            groups[-1].append(entry)
        else:
            groups.append([entry])
    return groups


def members(entries):
    """The lines of a class's members."""
    lines = []
    for group in grouped(entries):
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
    plain = [e for e in entry.inside if e.kind != "class"]
    lines += [*members([e for e in plain if not e.protected]), ""]
    if for_derived := members([e for e in plain if e.protected]):
        lines += ["For classes that derive from it:", "", *for_derived, ""]
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
    for header in dict.fromkeys(e.header for e in classes):
        links = ", ".join(f"[{e.name}](#{e.name.lower()})" for e in classes if e.header == header)
        lines.append(f"- `holon/{header}`: {links}")
    if classes and groups:
        lines.append("- [functions](#functions)")
    lines.append("")
    for entry in classes:
        lines += class_section(entry, entry.name, operations)
    if groups:
        lines += ["## Functions", ""]
    for group in groups:
        words = "\n\n".join(filter(None, (e.doc for e in group)))
        code = [(f"// namespace {e.scope[:-2]}\n" if e.scope and e is group[0] else "") + e.text + ";" for e in group]
        lines += ["```c++", *code, "```", "", words, "", f"`#include <holon/{group[0].header}>`", ""]
    return "\n".join(lines)


def missing_headers(header="holon.h"):
    """What the header includes, itself or by a header of its folder, and no page shows."""
    shown = {h for _, _, headers in PAGES.values() for h in headers} | ELSEWHERE
    missing = []
    for name in re.findall(r'^#include "holon/([^"]+)"', (ROOT / "holon" / header).read_text(), re.M):
        if "/" not in name and name not in ELSEWHERE:
            missing += missing_headers(name)
        elif name not in shown:
            missing.append(name)
    return list(dict.fromkeys(missing))


def pages(note, problems):
    """({path in the reference: text}, the number of classes)"""
    reader, operations, made, count = Reader(), op_names(), {}, 0
    problems += [
        f"holon/{h}: no page of the C++ reference has it (tools/reference/cpp.py)"
        for u in UMBRELLAS
        for h in missing_headers(u)
    ]
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


CONTENTS = """The classes and functions of `#include <holon/holon.h>`, from the comments in its headers. All names are
in namespace `holon`. The functions of tensors are [ops](../ops.md), which `holon/ops.h` declares with their
documentation. What is public, and what a release may change, is explained in `docs/guides/versioning.md`."""
