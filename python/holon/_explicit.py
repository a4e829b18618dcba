"""``holon explicit program.py``: writes every boxing that an op of the program inserts by itself as a to_global in the
source.

The program runs under boxing_policy("raise"). The expression whose value the first refused op would redistribute gets
a to_global, and the program runs again, until nothing is refused. What backward() redistributes is converted by
to_global(grad_sbp=...) on the line of the forward pass that the gradient comes back to. A conversion is taken if
results, gradients and parameters keep their bits. What none replaces is allowed where it happens by a block of
boxing_policy("silent"), and reported.
"""

import argparse
import ast
import difflib
import importlib.machinery
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
import types
from pathlib import Path
from typing import Any, NamedTuple

from . import _C
from ._programs import find_program

_EVENT = (
    r"(?P<op>\w+): (?P<from>.*?) -> (?P<to>.*?) on placement\(.*?\), (?P<dtype>\w+) (?P<shape>\[.*?\]), "
    r"\d+ bytes read by rank \d+ of \d+(?:, at (?P<place>.*?))?"
)
_REFUSED = re.compile(rf"^{_EVENT}\. The op .*the boxing policy is \"raise\"", re.S)
_WARNED = re.compile(rf"implicit boxing: {_EVENT}$")
_IN_BACKWARD = re.compile(r"This is in backward, (?P<how>.*), recorded at (?P<file>.*):(?P<line>\d+)\. There, ", re.S)
_MOST_EDITS = 200


# Part one: the program in a process of its own, with sources as they are edited so far.


def _serve(sources):
    """Imports take these texts instead of what is in the files."""
    original = importlib.machinery.SourceFileLoader.get_code

    def get_code(self, fullname):
        path = os.path.realpath(self.get_filename(fullname))
        if path in sources:
            return compile(sources[path], self.get_filename(fullname), "exec", dont_inherit=True)
        return original(self, fullname)

    importlib.machinery.SourceFileLoader.get_code = get_code


def _kind_of(value):
    """What identifies a tensor in a refusal; None for anything else."""
    if not isinstance(value, _C.Tensor) or value.is_local:
        return None
    return [str(value.sbp), str(list(value.shape)), str(value.dtype).rsplit(".", 1)[-1]]


def _names_and_attributes(node):
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and _names_and_attributes(node.value))


def _place(error):
    """The expression of the program that ran when it was raised, and the values of the names in it."""
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if not _C.is_users_file(frame.f_code.co_filename):
            continue
        found = frame, line
    if found is None:
        return None
    frame, line = found
    for tb in _tracebacks(error.__traceback__):
        if tb.tb_frame is frame:
            positions = list(frame.f_code.co_positions())[tb.tb_lasti // 2]
    # The package, or one that exports its names.
    alias = [
        name
        for name, value in frame.f_globals.items()
        if isinstance(value, types.ModuleType) and hasattr(value, "sbp") and hasattr(value, "boxing_policy")
    ]
    values = {}
    for name in {*frame.f_code.co_names, *frame.f_locals}:
        values[name] = frame.f_locals.get(name, frame.f_globals.get(name))
    kinds = {}
    for name, value in values.items():
        if kind := _kind_of(value):
            kinds[name] = kind
        elif hasattr(value, "__dict__"):
            for attribute, inner in list(vars(value).items()) + list(vars(value).get("_parameters", {}).items()):
                if kind := _kind_of(inner):
                    kinds[f"{name}.{attribute}"] = kind
    return {
        "file": os.path.realpath(frame.f_code.co_filename),
        "positions": positions,
        "alias": alias[0] if alias else "",
        "kinds": kinds,
        "line": line,
    }


def _tracebacks(tb):
    while tb is not None:
        yield tb
        tb = tb.tb_next


def _probe(work, program, arguments):
    """Runs the program; writes what was refused to work/refused.json."""
    with open(os.path.join(work, "sources.json")) as file:
        sources = json.load(file)
    path = os.path.realpath(program)
    _serve(sources)
    _C.add_package_folder(os.path.abspath(__file__))
    sys.argv = [program, *arguments]
    sys.path[0] = os.path.dirname(path)
    text = sources.get(path)
    if text is None:
        with open(path) as file:
            text = file.read()
    space = sys.modules["__main__"].__dict__
    space["__file__"] = program
    for name in [n for n in space if not n.startswith("__")]:
        del space[name]
    digest = _C.Digest()
    try:
        exec(compile(text, path, "exec", dont_inherit=True), space)
        Path(work, f"digest.{_C.rank()}").write_text(str(digest.value()))
    except RuntimeError as error:
        refused = _REFUSED.search(str(error))
        place = refused and _place(error)
        if place:
            backward = _IN_BACKWARD.search(str(error))
            found = {**place, "event": refused.groupdict(), "backward": backward and backward.groupdict()}
            _replace(os.path.join(work, "refused.json"), json.dumps(found))
        raise


def _replace(path, text):
    # Every rank writes the same.
    with tempfile.NamedTemporaryFile("w", dir=os.path.dirname(path), delete=False) as file:
        file.write(text)
    os.replace(file.name, path)


# Part two: what the source becomes.


class _Text:
    """A source with the offsets of its lines; columns of ast are bytes of UTF-8."""

    def __init__(self, text):
        self.bytes = text.encode()
        self.starts = [0]
        for line in self.bytes.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def at(self, line, column):
        return self.starts[line - 1] + column

    def span(self, node):
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def replaced(self, edits):
        """edits: (begin, end, text), which do not overlap."""
        out, done = [], 0
        for begin, end, text in sorted(edits):
            out += [self.bytes[done:begin], text.encode()]
            done = end
        return b"".join([*out, self.bytes[done:]]).decode()


def _sbp_source(text, alias):
    """ "(S(0), B)" as Python."""
    names = {"B": "broadcast", "P": "partial_sum"}
    items = re.findall(r"S\(\d+\)|B|P", text)
    made = [f"{alias}.sbp.split({i[2:-1]})" if i.startswith("S") else f"{alias}.sbp.{names[i]}" for i in items]
    return made[0] if len(made) == 1 and not text.startswith("(") else f"[{', '.join(made)}]"


def _at_positions(tree, positions):
    line, end_line, column, end_column = positions
    for node in ast.walk(tree):
        # An expression that is a statement has its place; an assignment in place is not an expression.
        if isinstance(node, (ast.expr, ast.AugAssign)):
            place = node.lineno, node.end_lineno, node.col_offset, node.end_col_offset
            if place == (line, end_line, column, end_column):
                return node
    return None


def _operands(node):
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.AugAssign):
        return [node.value]
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    if isinstance(node, (ast.UnaryOp,)):
        return [node.operand]
    if isinstance(node, ast.Subscript):
        return [node.value]
    if isinstance(node, ast.Call):
        given = [a for a in node.args if not isinstance(a, ast.Starred)] + [k.value for k in node.keywords if k.arg]
        return ([node.func.value] if isinstance(node.func, ast.Attribute) else []) + given
    return []


def _candidates(node, place):
    """The operands that may be what was refused, the likeliest first."""
    event = place["event"]
    wanted = [event["from"], event["shape"], event["dtype"]]
    sure, unsure = [], []
    for operand in _operands(node):
        if isinstance(operand, ast.Constant):
            continue
        if not _names_and_attributes(operand):
            unsure.append(operand)
            continue
        kind = place["kinds"].get(ast.unparse(operand))
        if kind and [_sbp_text(kind[0]), kind[1], kind[2]] == wanted:
            sure.append(operand)
    return sure + unsure


def _sbp_text(text):
    """ "(sbp.split(dim=0), ...)" as a refusal writes it."""
    items = re.findall(r"split\((?:dim=|axis=)?(\d+)\)|(broadcast)|(partial_sum)", text)
    made = [f"S({s})" if s else "B" if b else "P" for s, b, _ in items]
    return made[0] if len(made) == 1 else f"({', '.join(made)})"


def _statement(tree, node):
    """The innermost statement that the node is in."""
    best = None
    for s in ast.walk(tree):
        if isinstance(s, ast.stmt) and s.lineno <= node.lineno and s.end_lineno >= node.end_lineno:
            if best is None or (s.lineno, -s.end_lineno) >= (best.lineno, -best.end_lineno):
                best = s
    return best


def _names_of_holon(tree):
    """What the package, or one that exports its names, is called in the file; first of all, and every import."""
    imported, modules = set(), []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for name in node.names:
                called = name.asname or name.name.split(".")[0]
                imported.add(called)
                if isinstance(node, ast.Import):
                    modules.append((name.name, called))
    # A front end is known by what the program takes from it.
    places = {
        node.value.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("sbp", "placement") and isinstance(node.value, ast.Name)
    }
    named = [called for name, called in modules if name == "holon"] + [c for _, c in modules if c in places]
    return named[0] if named else "", imported


def _gradient_expressions(tree, line, imported):
    """The expressions of a line of the forward pass whose gradient may be the one that is redistributed, the likeliest
    first: what calls are given, what they return, what operators are given."""
    given, returned, operands = [], [], []
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr) or not node.lineno <= line <= node.end_lineno:
            continue
        if isinstance(node, ast.Call):
            returned.append(node)
            given += _operands(node)
        else:
            operands += _operands(node)
    found = []
    for node in given[::-1] + returned[::-1] + operands:
        root = node
        while isinstance(root, ast.Attribute):
            root = root.value
        # A tensor is no constant, module or object of the program's own.
        if isinstance(node, ast.Constant) or (isinstance(root, ast.Name) and root.id in imported):
            continue
        if isinstance(node, ast.Name) and node.id == "self":
            continue
        if not any(node is other for other in found):
            found.append(node)
    return found


def _converted(text, node, call):
    """The source with a method called on an expression."""
    begin, end = text.span(node)
    source = text.bytes[begin:end].decode()
    primary = isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
    return text.replaced([(begin, end, (source if primary else f"({source})") + call)])


def _kept_gradient(tree, node):
    """The keep_grad_sbp=True of a to_global that is called on the expression: a gradient can be stated in its place."""
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.value is node:
            for keyword in call.keywords if call.func.attr == "to_global" else []:
                if keyword.arg == "keep_grad_sbp":
                    return keyword
    return None


class Rewriter:
    """The sources as they are edited, and what was done."""

    def __init__(self):
        self.originals, self.sources = {}, {}
        self.made, self.allowed = [], []  # path, line, what; of those allowed also why

    def read(self, path):
        if path not in self.sources:
            with open(path) as file:
                self.originals[path] = self.sources[path] = file.read()
        return self.sources[path]

    def edits(self, place):
        """The sources that may not be refused for this again, the likeliest first: the path of the one that is edited,
        and its text after it."""
        return self._gradients(place) if place["backward"] else self._operands(place)

    def _operands(self, place):
        path, event = place["file"], place["event"]
        before = self.read(path)
        tree, text = ast.parse(before), _Text(before)
        node = _at_positions(tree, place["positions"])
        # The gradient goes on as it does where the op redistributes its input.
        call = f".to_global(sbp={_sbp_source(event['to'], place['alias'])}, keep_grad_sbp=True)"
        for operand in _candidates(node, place) if node and place["alias"] else []:
            yield path, _converted(text, operand, call)

    def _gradients(self, place):
        backward, event = place["backward"], place["event"]
        path, line = os.path.realpath(backward["file"]), int(backward["line"])
        before = self.read(path)
        tree, text = ast.parse(before), _Text(before)
        alias, imported = _names_of_holon(tree)
        given = f"grad_sbp={_sbp_source(event['to'], alias)}"
        for node in _gradient_expressions(tree, line, imported) if alias else []:
            if kept := _kept_gradient(tree, node):
                yield path, text.replaced([(*text.span(kept), given)])
            else:
                yield path, _converted(text, node, f".to_global({given})")

    def take(self, place, path, after):
        """Edits the source."""
        self.sources[path] = after
        backward = place["backward"]
        self.made.append((path, int(backward["line"]) if backward else place["line"], _what(place)))

    def allow(self, place, rounds, others):
        """Puts the statement into a block that allows this, and what else is redistributed on its line. rounds: it
        could be converted, but then sums are made in another order."""
        path, alias, line = place["file"], place["alias"], place["line"]
        if not alias:
            raise SystemExit(f"holon explicit: {path} has no name for holon; add `import holon as flow`.")
        before = self.read(path)
        tree = ast.parse(before)
        statement = _statement(tree, _Lines(place["positions"]))
        what = _what(place)
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.For, ast.While, ast.If, ast.With)):
            raise SystemExit(f"holon explicit: {path}:{statement.lineno}: {what} cannot be written as a to_global.")
        lines = before.splitlines(keepends=True)
        first, last = statement.lineno - 1, statement.end_lineno
        indent = re.match(r"\s*", lines[first])[0]
        block = [f'{indent}with {alias}.boxing_policy("silent"):  # {what}\n']
        block += ["    " + line if line.strip() else line for line in lines[first:last]]
        self.sources[path] = "".join(lines[:first] + block + lines[last:])
        self.allowed.append((path, line, what, self._why(place, tree, rounds)))
        more = [other for other in others if other != _text_of(place["event"])]
        self.allowed += [(path, line, other, "the same block allows it") for other in more]

    def _why(self, place, tree, rounds):
        node, backward = _at_positions(tree, place["positions"]), place["backward"]
        if backward:
            where = f"{os.path.basename(backward['file'])}:{backward['line']}"
            why = f"in {backward['how']}, and no to_global(grad_sbp=...) on {where} replaces it"
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("backward", "grad"):
            why = "what backward computes there was not recorded on a line of the program"
        elif rounds:
            why = "no to_global on this line replaces it"
        else:
            why = "it is not an operand on this line"
        return why + " with the same bits; --rounding takes one that makes sums in another order" if rounds else why


def _text_of(event):
    return f"{event['op']}: {event['from']} -> {event['to']}, {event['dtype']} {event['shape']}"


def _what(place):
    return ("backward, " if place["backward"] else "") + _text_of(place["event"])


class _Lines:
    def __init__(self, positions):
        self.lineno, self.end_lineno = positions[0], positions[1]


class _Result(NamedTuple):
    """A run of the program."""

    failed: bool
    out: list[str]
    err: str
    refused: dict[str, Any] | None
    digests: list[str]  # by rank: of gradients and parameters

    def is_as(self, other, printed):
        """printed: what is printed counts, besides gradients and parameters."""
        return not self.failed and self.digests == other.digests and (not printed or self.out == other.out)

    def warnings(self):
        """The implicit boxings of a run under "warn": where each is, and what."""
        return [(told["place"], _text_of(told)) for told in map(_WARNED.search, self.err.splitlines()) if told]


def _run(options, work, sources, policy):
    """Runs the program on its ranks."""
    refused = Path(work, "refused.json")
    for old in [refused, *Path(work).glob("digest.*")]:
        old.unlink(missing_ok=True)
    Path(work, "sources.json").write_text(json.dumps(sources))
    inner = ["-m", "holon._explicit", "--probe", work, options.program, *options.arguments]
    command = [sys.executable, *inner]
    if options.ranks:
        launcher = find_program("holon-launch", "HOLON_LAUNCH")
        command = [launcher, "-n", str(options.ranks), "--python", sys.executable, *inner]
    environment = {**os.environ, "HOLON_BOXING_POLICY": policy}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    return _Result(
        done.returncode != 0,
        sorted(done.stdout.splitlines()),  # ranks print in any order
        done.stderr,
        json.loads(refused.read_text()) if refused.exists() else None,
        [f"{path.name} {path.read_text()}" for path in sorted(Path(work).glob("digest.*"))],
    )


def _mend(options, work, rewriter, refused, base, printed):
    """Changes the source so that this is not refused again. Returns a run of it under "warn"."""
    rounded = None
    for path, after in rewriter.edits(refused):
        result = _run(options, work, {**rewriter.sources, path: after}, "warn")
        if result.failed or len(result.warnings()) >= len(base.warnings()):
            continue  # of another tensor
        if result.is_as(base, printed):
            rewriter.take(refused, path, after)
            return result
        rounded = rounded or (path, after, result)
    if rounded and options.rounding:
        rewriter.take(refused, *rounded[:2])
        return rounded[2]
    place = f"{refused['file']}:{refused['line']}"
    others = {what: None for where, what in base.warnings() if where and os.path.realpath(where) == place}
    rewriter.allow(refused, rounded is not None, list(others))
    return _run(options, work, rewriter.sources, "warn")


def _patch(rewriter):
    text = ""
    for path, after in rewriter.sources.items():
        name = os.path.relpath(path)
        before = rewriter.originals[path].splitlines(keepends=True)
        text += "".join(difflib.unified_diff(before, after.splitlines(keepends=True), f"a/{name}", f"b/{name}"))
    return text


def main(arguments=None):
    parser = argparse.ArgumentParser("holon explicit", description=__doc__.split("\n\n")[0])
    parser.add_argument("-n", "--nproc_per_node", dest="ranks", type=int, default=0, help="ranks, as processes")
    parser.add_argument(
        "--rounding", action="store_true", help="convert gradients also where that makes sums in another order"
    )
    parser.add_argument("-o", "--output", help="folder for the changed files; a patch is printed otherwise")
    parser.add_argument("program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    rewriter = Rewriter()
    with tempfile.TemporaryDirectory() as work:
        original = base = _run(options, work, {}, "warn")
        if original.failed:
            sys.exit(f"holon explicit: the program fails as it is:\n{original.err}")
        again = _run(options, work, {}, "warn")
        printed = again.out == original.out  # not where it prints times
        if not again.is_as(original, printed):
            sys.exit(
                "holon explicit: two runs of the program have other gradients or parameters, so that no conversion can "
                "be compared. Seed its random numbers (manual_seed), and those of its data."
            )
        for _ in range(_MOST_EDITS):
            done = _run(options, work, rewriter.sources, "raise")
            if not done.refused:
                break
            base = _mend(options, work, rewriter, done.refused, base, printed)
    if done.failed:
        sys.exit(f"holon explicit: the program fails with what was changed:\n{done.err}")
    for path, line, what in rewriter.made:
        print(f"{os.path.relpath(path)}:{line}: {what}: explicit", file=sys.stderr)
    for path, line, what, why in rewriter.allowed:
        print(f"{os.path.relpath(path)}:{line}: {what}: allowed by a block, {why}", file=sys.stderr)
    prints = f"the program prints {'the same' if done.out == original.out else 'something else'}"
    prints += "" if printed else " in each run"
    bits = f"gradients and parameters have {'the same' if done.digests == original.digests else 'other'} bits"
    print(f"{prints}; {bits}", file=sys.stderr)
    if options.output:
        for path, text in rewriter.sources.items():
            if text == rewriter.originals[path]:
                continue
            target = os.path.join(
                options.output, os.path.relpath(path, os.path.dirname(os.path.realpath(options.program)))
            )
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "w") as file:
                file.write(text)
    else:
        print(_patch(rewriter), end="")
    # Other bits than those that --rounding has accepted are a fault.
    return 0 if done.is_as(base, printed) else 1


if __name__ == "__main__":
    # The program gets the module __main__; what runs it is this one, imported.
    from holon._explicit import _probe as probe

    probe(sys.argv[2], sys.argv[3], sys.argv[4:])
