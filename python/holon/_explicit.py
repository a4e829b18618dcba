"""``holon explicit program.py``: writes every boxing that an op of the program inserts by itself as a to_global in the
source.

The program runs under boxing_policy("raise"). The expression whose value the first refused op would redistribute gets
a to_global, and the program runs again, until nothing is refused. What backward() redistributes is converted by
to_global(grad_sbp=...) on the line of the forward pass that the gradient comes back to. What no expression of the
program names is allowed where it happens by a block of boxing_policy("silent"), and reported.
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

from . import _C
from ._programs import find_program

_REFUSED = re.compile(
    r"^(?P<op>\w+): (?P<from>.*?) -> (?P<to>.*?) on placement\(.*?\), (?P<dtype>\w+) (?P<shape>\[.*?\]), "
    r".*the boxing policy is \"raise\"",
    re.S,
)
_WARNED = re.compile(
    r"implicit boxing: (?P<op>\w+): (?P<from>.*?) -> (?P<to>.*?) on placement\(.*?\), (?P<dtype>\w+) (?P<shape>\[.*?\]), "
)
_IN_BACKWARD = re.compile(r"This is in backward, (?P<how>.*), recorded at (?P<file>.*):(?P<line>\d+)\. There, ", re.S)
_MOST_RUNS = 200


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
    try:
        exec(compile(text, path, "exec", dont_inherit=True), space)
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
    alias, imported = "", set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for name in node.names:
                called = name.asname or name.name.split(".")[0]
                imported.add(called)
                if isinstance(node, ast.Import) and name.name in ("holon", "oneflow"):
                    alias = alias or called
    return alias, imported


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


class Rewriter:
    """The sources as they are edited, and what was done."""

    def __init__(self):
        self.originals, self.sources = {}, {}
        self.made, self.allowed = [], []
        self.tried = {}  # of each refusal: how many operands

    def read(self, path):
        if path not in self.sources:
            with open(path) as file:
                self.originals[path] = self.sources[path] = file.read()
        return self.sources[path]

    def mend(self, place):
        """Changes the source so that this is not refused again."""
        path = place["file"]
        before = self.read(path)
        event, alias = place["event"], place["alias"]
        what = f"{event['op']}: {event['from']} -> {event['to']}, {event['dtype']} {event['shape']}"
        tree = ast.parse(before)
        node = _at_positions(tree, place["positions"])
        if not alias:
            raise SystemExit(f"holon explicit: {path} has no name for holon; add `import holon as flow`.")
        backward = isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("backward", "grad")
        number = self.tried.get((path, what, place["positions"][0]), 0)
        candidates = [] if node is None or backward else _candidates(node, place)
        # The same again: the operand before was another tensor.
        if number and self.made and self.made[-1][0] == (path, what):
            self.sources[path] = self.made.pop()[2]
            return self.mend_again(place, number)
        if number < len(candidates):
            self.tried[path, what, place["positions"][0]] = number + 1
            self.insert(path, candidates[number], event, alias, what, place["line"])
            return None
        return self.allow(path, tree, place, alias, what, backward)

    def mend_again(self, place, number):
        path, event, alias = place["file"], place["event"], place["alias"]
        what = f"{event['op']}: {event['from']} -> {event['to']}, {event['dtype']} {event['shape']}"
        tree = ast.parse(self.read(path))
        # Columns behind the edit were those of the edited text: the expression is found by its line.
        nodes = [n for n in ast.walk(tree) if isinstance(n, ast.expr) and n.lineno == place["positions"][0]]
        node = next((n for n in nodes if len(_candidates(n, place)) > number), None)
        if node is None:
            return self.allow(path, tree, place, alias, what, False)
        self.tried[path, what, place["positions"][0]] = number + 1
        self.insert(path, _candidates(node, place)[number], event, alias, what, place["line"])
        return None

    def insert(self, path, operand, event, alias, what, line):
        before = self.sources[path]
        text = _Text(before)
        begin, end = text.span(operand)
        primary = isinstance(operand, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
        source = text.bytes[begin:end].decode()
        # The gradient goes on as it does where the op redistributes its input.
        call = f".to_global(sbp={_sbp_source(event['to'], alias)}, keep_grad_sbp=True)"
        self.sources[path] = text.replaced([(begin, end, (source if primary else f"({source})") + call)])
        self.made.append(((path, what), line, before))

    def gradients(self, place):
        """The edits of the source, one at a time, that may convert what backward would redistribute: what is edited
        and its text after it."""
        backward, event = place["backward"], place["event"]
        path, line = os.path.realpath(backward["file"]), int(backward["line"])
        before = self.read(path)
        tree, text = ast.parse(before), _Text(before)
        alias, imported = _names_of_holon(tree)
        call = f".to_global(grad_sbp={_sbp_source(event['to'], alias)})"
        for node in _gradient_expressions(tree, line, imported) if alias else []:
            begin, end = text.span(node)
            primary = isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
            source = text.bytes[begin:end].decode()
            yield path, text.replaced([(begin, end, (source if primary else f"({source})") + call)])

    def take(self, path, after, place):
        event, before = place["event"], self.sources[path]
        what = f"gradient, {event['from']} -> {event['to']}, {event['dtype']} {event['shape']}"
        self.made.append(((path, what), int(place["backward"]["line"]), before))
        self.sources[path] = after

    def allow(self, path, tree, place, alias, what, backward):
        statement = _statement(tree, _Lines(place["positions"]))
        before = self.sources[path]
        lines = before.splitlines(keepends=True)
        first, last = statement.lineno - 1, statement.end_lineno
        indent = re.match(r"\s*", lines[first])[0]
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.For, ast.While, ast.If, ast.With)):
            raise SystemExit(f"holon explicit: {path}:{statement.lineno}: {what} cannot be written as a to_global.")
        block = [f'{indent}with {alias}.boxing_policy("silent"):  # {what}\n']
        block += ["    " + line if line.strip() else line for line in lines[first:last]]
        self.sources[path] = "".join(lines[:first] + block + lines[last:])
        why = "it is not an operand on this line"
        if backward and place["backward"]:
            where = f"{os.path.basename(place['backward']['file'])}:{place['backward']['line']}"
            why = f"in {place['backward']['how']}, and no to_global(grad_sbp=...) on {where} replaces it"
        elif backward:
            why = "what backward computes there was not recorded on a line of the program"
        self.allowed.append((path, place["line"], what, why))


class _Lines:
    def __init__(self, positions):
        self.lineno, self.end_lineno = positions[0], positions[1]


def _run(options, work, sources, policy):
    """Runs the program on its ranks; returns the process and what was refused."""
    refused = os.path.join(work, "refused.json")
    if os.path.exists(refused):
        os.remove(refused)
    with open(os.path.join(work, "sources.json"), "w") as file:
        json.dump(sources, file)
    inner = ["-m", "holon._explicit", "--probe", work, options.program, *options.arguments]
    command = [sys.executable, *inner]
    if options.ranks:
        launcher = find_program("holon-launch", "HOLON_LAUNCH")
        command = [launcher, "-n", str(options.ranks), "--python", sys.executable, *inner]
    environment = {**os.environ, "HOLON_BOXING_POLICY": policy}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    found = None
    if os.path.exists(refused):
        with open(refused) as file:
            found = json.load(file)
    return done, found


def _identity(refused):
    return json.dumps([refused["event"], refused["backward"], refused["file"], refused["line"]], sort_keys=True)


def _convert_gradient(options, work, rewriter, refused, original, seen):
    """Tries the expressions that the gradient may be of; whether one made the refusal go, with the same results."""
    seen.add(_identity(refused))
    for path, after in rewriter.gradients(refused):
        sources = {**rewriter.sources, path: after}
        done, following = _run(options, work, sources, "raise")
        if _identity(following) in seen if following else done.returncode:
            continue
        done, _ = _run(options, work, sources, "silent")
        if done.returncode or not _prints_alike(original, done):
            continue
        rewriter.take(path, after, refused)
        return True
    return False


def _others_on(options, work, sources, refused):
    """What else is redistributed implicitly on the line, which a block is about to allow."""
    done, _ = _run(options, work, sources, "warn")
    place = f", at {refused['file']}:{refused['line']}"
    found = []
    for line in done.stderr.splitlines():
        told = _WARNED.search(line)
        if told and line.rstrip().endswith(place):
            what = f"{told['op']}: {told['from']} -> {told['to']}, {told['dtype']} {told['shape']}"
            if what not in found:
                found.append(what)
    return found


def _prints_alike(a, b):
    # Ranks print in any order.
    return sorted(a.stdout.splitlines()) == sorted(b.stdout.splitlines())


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
    parser.add_argument("-o", "--output", help="folder for the changed files; a patch is printed otherwise")
    parser.add_argument("program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    rewriter = Rewriter()
    with tempfile.TemporaryDirectory() as work:
        original, _ = _run(options, work, {}, "silent")
        if original.returncode:
            sys.exit(f"holon explicit: the program fails as it is:\n{original.stderr}")
        seen = set()
        for _ in range(_MOST_RUNS):
            done, refused = _run(options, work, rewriter.sources, "raise")
            if not refused:
                break
            if refused["backward"] and _convert_gradient(options, work, rewriter, refused, original, seen):
                continue
            before, allowed = dict(rewriter.sources), len(rewriter.allowed)
            rewriter.mend(refused)
            for path, line, what, _ in rewriter.allowed[allowed:]:
                others = _others_on(options, work, before, refused)
                rewriter.allowed += [(path, line, o, "the same block allows it") for o in others if o != what]
    if done.returncode:
        sys.exit(f"holon explicit: the program fails with what was changed:\n{done.stderr}")
    for (path, what), line, _ in rewriter.made:
        print(f"{os.path.relpath(path)}:{line}: {what}: explicit", file=sys.stderr)
    for path, line, what, why in rewriter.allowed:
        print(f"{os.path.relpath(path)}:{line}: {what}: allowed by a block, {why}", file=sys.stderr)
    same = _prints_alike(original, done)
    print(f"the program prints {'the same' if same else 'something else'}", file=sys.stderr)
    if options.output:
        for path, text in rewriter.sources.items():
            target = os.path.join(
                options.output, os.path.relpath(path, os.path.dirname(os.path.realpath(options.program)))
            )
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "w") as file:
                file.write(text)
    else:
        print(_patch(rewriter), end="")
    return 0 if same else 1


if __name__ == "__main__":
    # The program gets the module __main__; what runs it is this one, imported.
    from holon._explicit import _probe as probe

    probe(sys.argv[2], sys.argv[3], sys.argv[4:])
