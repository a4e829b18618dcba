"""The pages of the ops: ops.md, one line each, and ops/<family>.md with a section for each public name."""

import re
import sys
from pathlib import Path

from holon import _C

from . import examples, observe

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from generate_ops import Op  # noqa: E402

EVERY = observe.DTYPES
FLOATS = EVERY[5:]
NUMBERS = EVERY[1:]


def source(family):
    """Where the ops of a family are declared; None: in a library from outside."""
    found = [path for folder in ("ops", "nn") if (path := ROOT / "holon" / folder / f"{family}.cpp").exists()]
    return found[0] if found else None


def intro(path):
    """The comment at the head of a source file."""
    lines = []
    for line in path.read_text().splitlines():
        if not line.startswith("//"):
            break
        lines.append(line.removeprefix("//").strip())
    return " ".join(lines)


def cell(text):
    return text.replace("|", "\\|").replace("\n", " ")


def first_sentence(text):
    return re.split(r"(?<=[.:;])\s", text, maxsplit=1)[0].rstrip(".:;")


def dtype_words(names):
    for words, those in (
        ("every dtype", EVERY),
        ("every dtype but bool", NUMBERS),
        ("floating point", FLOATS),
        ("integers", EVERY[1:5]),
        ("integers and bool", EVERY[:5]),
    ):
        if names == those:
            return words
    return ", ".join(names) or "none"


def shape_words(call):
    def text(label, t):
        return f"{label} {list(t.shape)}".strip()

    tensors = call.tensors()
    given = ", ".join(text(call.label(p), t) for p, t in tensors.items())
    out = ", ".join(text("", t) for t in examples.flat(call.result)) or type(call.result).__name__
    return f"{given} → {out}" if given else out


class Form:
    """One op: a public name has one or, with overloads, several."""

    def __init__(self, op, problems):
        self.op, self.call, self.shown = op, None, []
        self.cpp = Op.described(op).declaration().rstrip() if op["cpp_function"] and source(op["family"]) else ""
        self.dtypes, self.devices, self.gradients, self.signatures = [], [], ([], []), ([], "there is no example")
        if not op["example"]:
            problems.append(f"{op['name']}: no example")
            return
        try:
            self.shown, self.call = examples.run_op_example(op)
        except Exception as e:  # noqa: BLE001 - all failures are listed
            problems.append(f"{op['name']}: the example failed: {op['example']}: {type(e).__name__}: {e}")
            return
        try:
            self.dtypes, self.devices = observe.dtypes(self.call), observe.devices(self.call)
            self.gradients, self.signatures = observe.gradients(self.call), observe.signatures(self.call)
        except Exception as e:  # noqa: BLE001
            problems.append(f"{op['name']}: observing {op['example']} failed: {type(e).__name__}: {e}")
            return
        if not self.signatures[0] and self.signatures[1].startswith("observed"):
            problems.append(f"{op['name']}: no layout runs without moving data: {op['example']}")

    def gradient_words(self):
        once, twice = self.gradients
        if not once:
            return "no"
        if twice == once:
            return f"yes, and of its gradient too ({', '.join(once)})"
        return f"yes ({', '.join(once)})" + (
            f", and of its gradient too for {', '.join(twice)}" if twice else "; not of its gradient"
        )

    def sbp_lines(self):
        op = self.op
        found, how = self.signatures
        if not found:
            return [f"- **sbp**: {how}."]
        rule = "" if op["composed"] or op["rule"].startswith(("by function", "whole")) else f" `{op['rule']}`"
        whole = f"; runs whole, as {op['rule'].removeprefix('whole: ')}" if op["rule"].startswith("whole: ") else ""
        return [f"- **sbp** ({how}{rule}{whole}): " + " · ".join(f"`{s}`" for s in found)]

    def lines(self):
        op = self.op
        lines = ["```", op["signature"], "```", "", op["doc"], ""]
        if op["shapes"]:
            lines += [op["shapes"], ""]
        if self.shown:
            lines += examples.transcript(self.shown)
        if self.call:
            lines.append(f"- **shapes** of the example: {shape_words(self.call)}")
        for names, works in self.dtypes:
            lines.append(
                f"- **dtypes** of {', '.join(names)}: {dtype_words(works)}"
                if names != ["dtype"]
                else f"- **dtypes**: {dtype_words(works)}"
            )
        if self.devices:
            lines.append(f"- **devices**: {', '.join('cuda (simulated)' if d == 'cuda' else d for d in self.devices)}")
        lines.append(f"- **gradient**: {self.gradient_words()}")
        name = op["public_name"]
        also = [f"`Tensor.{name}`"] if op["method"] and op["args"] and op["args"][0]["type"] == "Tensor" else []
        also += [f"in place `{op['in_place_name']}`"] if op["in_place"] else []
        also += [f"alias `{a}`" for a in op["aliases"]]
        if op["scalar_overload"]:
            also.append("either argument may be a number")
        if also:
            lines.append(f"- **forms**: {', '.join(also)}")
        lines += [*self.sbp_lines(), ""]
        if self.cpp:
            lines += ["```c++", self.cpp, "```", ""]
        return lines


def pages(note, problems):
    """{path in the reference: text}"""
    names = {}
    for op in _C.op_table():
        # Hidden ops, which only gradients and bodies call, are left out.
        if op["function"] or op["method"]:
            names.setdefault(op["public_name"], []).append(Form(op, problems))
    by_family = {}
    for name, forms in names.items():
        by_family.setdefault(forms[0].op["family"], []).append(name)
    made, index = {}, []
    for family in sorted(by_family):
        declared = source(family)
        where = f"`{declared.relative_to(ROOT)}`" if declared else "a library"
        page = [
            f"# {family}",
            "",
            note,
            f"{intro(declared) if declared else ''}",
            "",
            f"Declared in {where}. [All ops](../ops.md).",
            "",
        ]
        index += [
            f"## [{family}](ops/{family}.md)",
            "",
            "| op | what it does | gradient | dtypes |",
            "| --- | --- | --- | --- |",
        ]
        for name in sorted(by_family[family]):
            page += [f"## {name}", ""]
            for form in names[name]:
                page += form.lines()
            first = names[name][0]
            works = dtype_words(first.dtypes[0][1]) if first.dtypes else ""
            forms = f" ({len(names[name])} forms)" if len(names[name]) > 1 else ""
            grad = "twice" if first.gradients[1] else "yes" if first.gradients[0] else ""
            doc = cell(first_sentence(first.op["doc"]))
            index.append(f"| [{name}](ops/{family}.md#{name}){forms} | {doc} | {grad} | {works} |")
        index.append("")
        made[f"ops/{family}.md"] = "\n".join(page)
    head = [
        "# Ops",
        "",
        note,
        f"{len(names)} ops. Each is a function of `holon` and, if its first argument is a tensor, "
        "a method of `Tensor`.",
        "",
        HOW_TO_READ,
        "",
    ]
    made["ops.md"] = "\n".join([*head, *index])
    return made, len(names)


HOW_TO_READ = """On the pages of the families, examples ran when the page was made, after `import holon as flow`;
so did what is below them, with the example's arguments:

- *dtypes* that the arguments took; those that are named together were of one dtype.
- *gradient*: of which arguments, and whether that gradient has a gradient itself.
- *sbp*: the signatures for one axis of ranks: the layouts of the tensors, in order, and of the results. S(0) is split
  along axis 0, B broadcast, P partial sum. An input that fits none is redistributed to the one that moves least.
  *rule* names the axes by factors: an axis whose factor is in the result may be split in all operands that carry
  it; one that is in the operands alone is contracted and leaves a partial sum."""
