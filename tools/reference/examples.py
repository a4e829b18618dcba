"""Runs examples as at Python's prompt, and records the call of the op that one is of."""

import ast
import contextlib
import doctest
import io
import re
import sys
from dataclasses import dataclass, field

import holon


def public_names():
    """What an op's example may name without a prefix."""
    return {name: getattr(holon, name) for name in dir(holon) if not name.startswith("_")}


def qualified(source, names):
    """The same source with `flow.` before every name of holon: what a user types after `import holon as flow`."""
    places = [
        (n.lineno, n.col_offset)
        for n in ast.walk(ast.parse(source))
        if isinstance(n, ast.Name) and n.id in names and n.id not in ("flow", "holon")
    ]
    lines = [line.encode() for line in source.split("\n")]
    for line, column in sorted(places, reverse=True):
        text = lines[line - 1]
        lines[line - 1] = text[:column] + b"flow." + text[column:]
    return "\n".join(line.decode() for line in lines)


@dataclass
class Shown:
    """What was typed, and what came back."""

    source: str
    printed: str


def run(sources, names):
    """Runs statements one after the other; an expression's value is printed as at the prompt."""
    holon.manual_seed(0)
    hook, shown = sys.displayhook, []
    try:
        sys.displayhook = lambda value: None if value is None else print(repr(value))
        for source in sources:
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(source + "\n", "<example>", "single"), names)
            shown.append(Shown(source, out.getvalue().rstrip()))
    finally:
        sys.displayhook = hook
    return shown


def transcript(shown):
    lines = ["```pycon"]
    for s in shown:
        first, *rest = s.source.split("\n")
        lines += [">>> " + first, *("... " + r for r in rest), *([s.printed] if s.printed else [])]
    return [*lines, "```", ""]


def of_docstring(doc):
    """(the words of a docstring, its examples' statements): `>>>` lines, or lines that begin with `Example:`."""
    found = [e.source.rstrip("\n") for e in doctest.DocTestParser().get_examples(doc)]
    text = re.sub(r"^[ \t]*>>> .*\n?(?:^[ \t]*\S.*\n?)*", "", doc, flags=re.M) if found else doc
    found += [m.strip() for m in re.findall(r"Example: *(.+?)\.?$", text, re.M)]
    return re.sub(r"[ \t]*Example: *.+$\n?", "", text, flags=re.M).strip(), found


@dataclass
class Call:
    """A call of an op with the arguments that it got.
    Tensors in it are named by a place: (where, key, index in a list)."""

    op: dict
    function: object
    args: tuple = ()
    kwargs: dict = field(default_factory=dict)
    result: object = None

    def tensors(self):
        found = {}
        for where, items in (("args", enumerate(self.args)), ("kwargs", self.kwargs.items())):
            for key, value in items:
                if isinstance(value, holon.Tensor):
                    found[where, key, None] = value
                elif isinstance(value, (list, tuple)):
                    found.update({(where, key, i): v for i, v in enumerate(value) if isinstance(v, holon.Tensor)})
        return found

    def label(self, place):
        where, key, index = place
        name = key if where == "kwargs" else self.op["args"][min(key, len(self.op["args"]) - 1)]["name"]
        return name if index is None else f"{name}[{index}]"

    def run(self, tensors=None, **extra):
        """Runs it again with other tensors at some places."""
        args, kwargs = list(self.args), {**self.kwargs, **extra}
        for (where, key, index), value in (tensors or {}).items():
            into = args if where == "args" else kwargs
            if index is None:
                into[key] = value
            else:
                into[key] = [value if i == index else v for i, v in enumerate(into[key])]
        return self.function(*args, **kwargs)


class Recording:
    """Stands for an op in an example; the last call made is the outermost one."""

    def __init__(self, op):
        self.call = None
        self.op = op
        self.function = holon._C.find_op_function(op["public_name"])

    def __call__(self, *args, **kwargs):
        result = self.function(*args, **kwargs)
        self.call = Call(self.op, self.function, args, kwargs, result)
        return result


def run_op_example(op):
    """(what the prompt shows, the Call). Errors: whatever the example raises; ValueError if it does not call the op."""
    names = public_names()
    recording = Recording(op)
    shown = run([op["example"]], {**names, op["public_name"]: recording})
    if recording.call is None:
        raise ValueError(f"the example does not call {op['public_name']}: {op['example']}")
    return [Shown(qualified(s.source, names), s.printed) for s in shown], recording.call


def flat(result):
    """The tensors of what an op returned."""
    if isinstance(result, holon.Tensor):
        return [result]
    return [t for item in result for t in flat(item)] if isinstance(result, (list, tuple)) else []
