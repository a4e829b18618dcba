#!/usr/bin/env python3
"""Writes the C++ functions of all ops, and their names, from their declarations: generate_ops.py FOLDER FILE...

Reads HOLON_OP(name, "schema"), HOLON_UNARY(name, ...) and HOLON_BINARY(name, ...) in the given sources, and
the declaration's .doc(), .in_place(), .overload_of("name"), .hidden() and .python_only(). Of a source family.cpp it
writes

  FOLDER/holon/ops/family.h        the functions, for what uses ops of that family
  FOLDER/holon/internal_ops/family.h  those that only gradients and bodies of others call
  FOLDER/holon/op_names/family.h   the names, by which passes recognise ops

and of all together FOLDER/ops_functions.cpp, the bodies, and FOLDER/holon/ops.h and op_names.h, which are for users:
what includes them is compiled again with each new op. A file is written only if its text changes. A source with a
header of its own (holon/ops/values.h) is no family and declares no ops.
"""

import re
import sys
import textwrap
from pathlib import Path

SCALAR_TYPES = {
    "int": "int64_t",
    "float": "double",
    "bool": "bool",
    "Scalar": "Scalar",
    "str": "std::string_view",
    "dtype": "DType",
    "device": "Device",
}
PUSH = {
    "int": "int",
    "float": "float",
    "bool": "bool",
    "Scalar": "scalar",
    "str": "text",
    "dtype": "dtype",
    "device": "device",
    "placement": "placement",
    "sbp": "nd_sbp",
}


# What HOLON_UNARY and HOLON_BINARY add to a declaration.
ELEMENTWISE = ".elementwise().in_place()"


def declarations(text):
    """Yields (schema, declaration's text) for every op of a source file."""
    pattern = re.compile(r'^\s*HOLON_(OP|UNARY|BINARY)\(\s*(\w+)\s*,\s*((?:"[^"]*"\s*)*)', re.M)
    found = list(pattern.finditer(text))
    for m, following in zip(found, found[1:] + [None]):
        body = text[m.end() : following.start() if following else len(text)]
        kind, name = m.group(1), m.group(2)
        if kind == "OP":
            yield "".join(re.findall(r'"([^"]*)"', m.group(3))), body
        elif kind == "UNARY":
            yield f"{name}(Tensor x) -> Tensor", body + ELEMENTWISE
        else:
            of_tensor, of_scalar = re.split(r"(?=\.doc\()", body)[1:3]
            yield f"{name}(Tensor x, Tensor other) -> Tensor", of_tensor + ELEMENTWISE
            scalar = f"{name}_scalar({SCALAR_OF_BINARY}) -> Tensor"
            yield scalar, of_scalar + ELEMENTWISE


SCALAR_OF_BINARY = "Tensor x, Scalar value, *, bool reverse=False"
STRING = r'"(?:[^"\\]|\\.)*"'


def text_of(literals):
    """The value of adjacent string literals."""
    return "".join(s[1:-1] for s in re.findall(STRING, literals)).replace('\\"', '"')


def errors_of(body):
    """What the declaration's inference refuses, as in "inner sizes differ"."""
    found = re.findall(rf"c\.require(?:_dtype)?\((?:[^;]*?),\s*((?:{STRING}\s*)+),\s*\"", body)
    found += re.findall(r'fail_\w+\(\s*"(?:\w+|\{\}): ([^":.;{}]+)(?=[:.;])', body)
    texts = dict.fromkeys(text_of(f) if f[0] == '"' else f for f in found)
    return [t for t in texts if not re.match("(give|pass|take)s? ", t)]  # what to do instead


def documentation(schema, body):
    """What the declaration tells of the op: what it computes, of which shapes, and what it refuses."""
    found = re.search(rf"\.doc\(\s*((?:{STRING}\s*)+)", body)
    doc, colon, errors = text_of(found[1]).partition(" Errors:") if found else ("", "", "")
    if ".elementwise()" in body and "broadcast" not in doc:
        one = schema.count("Tensor") == 2
        doc += " The result has the shape of x." if one else " The tensors broadcast to one shape."
    if not errors and (refused := errors_of(body)):
        colon, errors = " Errors:", f" {'; '.join(refused)}."
    return in_cpp(doc + colon + errors)


def in_cpp(doc):
    """The words of a documentation, which are Python's, for C++."""
    doc = re.sub(r"\((Index|Value|Runtime|Type|NotImplemented)Error\)", r"(ErrorKind::k\1)", doc)
    doc = re.sub(r"\b(\w+)=(True|False)\b", r".\1 = \2", doc)
    doc = re.sub(r"\b(True|False)\b", lambda m: m[0].lower(), doc)
    doc = re.sub(r"(?<!\w)'([\w-]+)'(?!\w)", r'"\1"', doc)
    return doc.replace("may be None", "may be left out")


def comment(text):
    return "".join(f"// {line}\n" for line in textwrap.wrap(text, 117, break_long_words=False, break_on_hyphens=False))


def split_args(text):
    depth, part, parts = 0, "", []
    for c in text:
        depth += (c in "[(") - (c in "])")
        if c == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += c
    return parts + [part.strip()] if part.strip() else parts


class Arg:
    def __init__(self, text, keyword):
        head, _, default = text.partition("=")
        self.default = default.strip() or None
        kind, self.name = head.split()
        self.keyword = keyword
        self.optional = kind.endswith("?")
        kind = kind.rstrip("?")
        self.variadic = kind.endswith("...")
        self.list = self.variadic or kind.endswith("]")
        m = re.match(r"(\w+)(?:\[(\d*)\])?", kind)
        self.base, self.repeat = m.group(1), int(m.group(2) or 0)
        self.tensor = self.base == "Tensor"
        self.long_list = self.list and not self.tensor and self.name.endswith(("sizes", "lengths"))

    def cpp_type(self, field=False):
        if self.tensor:
            if self.list:
                return "std::vector<Tensor>" if field else "TensorList"
            return "Tensor" if field else "const Tensor&"
        if self.base == "placement":
            return "Placement"
        if self.base == "sbp":
            return "NdSbp"
        if self.list and not self.long_list:
            t = ("Optional" if self.optional else "") + (f"ExpandingDims<{self.repeat}>" if self.repeat else "Dims")
        else:
            t = "std::vector<int64_t>" if self.list else SCALAR_TYPES[self.base]
            if self.optional:
                t = f"std::optional<{t}>"
        return t if field or not self.list else f"const {t}&"

    def cpp_default(self):
        d = self.default
        if d is None:
            return None
        if d == "None":
            return "{}"
        if d in ("True", "False"):
            return d.lower()
        if self.list:
            if d.startswith("["):
                return "{" + d[1:-1] + "}"
            return "{" + ", ".join([d] * self.repeat) + "}"
        if self.base == "str":
            return '"' + d.strip("'") + '"'
        if self.base == "float":
            return d if "." in d or "e" in d else d + ".0"
        if self.base == "Scalar" and "." not in d and "e" not in d:
            return f"int64_t{{{d}}}"
        return d

    def push(self, value):
        if self.list:
            call = "a.push_ints({})"
        else:
            call = f"a.push_{PUSH[self.base]}({{}})"
        if self.base in ("placement", "sbp"):
            return f"if ({value}) {call.format(value)}; else a.push_none();"
        if self.optional:
            return f"if ({value}) {call.format('*' + value)}; else a.push_none();"
        return call.format(value) + ";"


RESERVED = {"xor", "and", "or", "not", "bool", "int", "float", "default"}


def identifier(name):
    return name + "_" if name in RESERVED else name


class Op:
    """An op's C++ functions; public: the name that it shares with other forms, in_place_name: where it is another."""

    def __init__(self, schema, public=None, in_place=False, in_place_name=None):
        m = re.match(r"\s*(\w+)\((.*)\)\s*->\s*(.*)$", schema, re.S)
        if not m:
            sys.exit(f"generate_ops: cannot read the schema {schema!r}")
        self.name, args, out = m.groups()
        self.doc, self.hidden = "", False
        self.public = public or self.name
        # add_scalar(Tensor, Scalar) is an overload of add() in C++.
        self.cpp = identifier(re.sub("_scalar$", "", self.public) if SCALAR_OF_BINARY in args else self.public)
        self.args, keyword = [], False
        for text in split_args(args):
            if text == "*":
                keyword = True
            else:
                self.args.append(Arg(text, keyword))
        out = out.strip()
        self.outputs = -1 if out == "Tensor[]" else len(re.findall(r"\bTensor\b", out))
        self.output_names = re.findall(r"\bTensor\s+(\w+)", out)
        self.in_place = in_place and self.outputs == 1
        self.in_place_name = self.cpp + "_" if SCALAR_OF_BINARY in args else in_place_name or self.public + "_"
        self.options = [a for a in self.args if a.keyword]
        self.struct = "".join(w.capitalize() for w in self.name.split("_")) + "Options"
        # Designated initialisers want an order: what users set most comes first.
        order = ["placement", "sbp", "dtype", "device", "requires_grad"]
        self.fields = sorted(self.options, key=lambda a: order.index(a.name) if a.name in order else -1)

    @classmethod
    def read(cls, schema, body):
        """From the declaration's text."""
        public = re.search(r'\.overload_of\("(\w+)"\)', body)
        named = re.search(r'\.in_place\("(\w+)"\)', body)
        op = cls(schema, public and public[1], ".in_place(" in body, named and named[1])
        op.doc, op.hidden = documentation(schema, body), ".hidden()" in body
        return op

    @classmethod
    def described(cls, row):
        """From the library's description."""
        return cls(row["schema"], row["public_name"], row["in_place"], row["in_place_name"])

    def result_struct(self):
        """Named outputs are a struct's members; it can be taken apart by auto [values, indices] = ..."""
        if not self.output_names:
            return ""
        return f"struct {self.returns()} {{\n  Tensor {', '.join(self.output_names)};\n}};\n"

    def returns(self):
        if self.output_names:
            return self.struct.removesuffix("Options") + "Result"
        return {1: "Tensor", -1: "std::vector<Tensor>"}.get(self.outputs, f"std::array<Tensor, {self.outputs}>")

    def options_struct(self):
        if not self.options:
            return ""
        lines = [f"struct {self.struct} {{"]
        for a in self.fields:
            default = a.cpp_default()
            lines.append(
                f"  {a.cpp_type(True)} {a.name}" + (f" = {default};" if default not in (None, "{}") else "{};")
            )
        return "\n".join(lines + ["};\n"])

    def params(self, defaults):
        parts = []
        for a in self.args:
            if a.keyword:
                continue
            d = a.cpp_default() if defaults else None
            parts.append(f"{a.cpp_type()} {a.name}" + (f" = {d}" if d is not None else ""))
        if self.options:
            parts.append(f"const {self.struct}& options" + (" = {}" if defaults else ""))
        return ", ".join(parts)

    def structs(self):
        return self.options_struct() + self.result_struct()

    def function(self):
        return f"{self.returns()} {self.cpp}({self.params(True)});\n"

    def in_place_function(self):
        params = self.params(True).replace("const Tensor& ", "Tensor ", 1)
        return f"Tensor {self.in_place_name}({params});\n" if self.in_place else ""

    def declaration(self):
        return self.structs() + self.function() + self.in_place_function()

    def public_declaration(self):
        """For programs, with its documentation. A hidden op may be public as one that writes into its input."""
        if self.hidden:
            named = self.in_place and self.in_place_name != self.public + "_"
            return self.structs() + comment(self.doc) + self.in_place_function() if named else ""
        text = self.structs() + comment(self.doc) + self.function()
        return text + comment(f"{self.cpp}() in place.") + self.in_place_function() if self.in_place else text

    def internal_declaration(self):
        """What public_declaration() leaves out."""
        if not self.hidden:
            return ""
        return self.function() if self.public_declaration() else self.declaration()

    def body(self, run):
        lines = [f'  static const OpDef& op = find_op("{self.name}");', "  TensorVec in;", "  Attrs a;"]
        for a in self.args:
            value = f"options.{a.name}" if a.keyword else a.name
            if a.tensor:
                lines.append(f"  for (auto& t : {value}) in.push_back(t);" if a.list else f"  in.push_back({value});")
            else:
                lines.append("  " + a.push(value))
        return "\n".join(lines + [run, "}\n"])

    def definition(self):
        run = {
            1: "  return dispatch_one(op, std::move(in), a);",
            -1: "  TensorVec out = dispatch(op, std::move(in), a);\n  return {out.begin(), out.end()};",
        }.get(self.outputs) or (
            "  TensorVec out = dispatch(op, std::move(in), a);\n  return {"
            + ", ".join(f"out[{i}]" for i in range(self.outputs))
            + "};"
        )
        text = f"{self.returns()} {self.cpp}({self.params(False)}) {{\n" + self.body(run)
        if self.in_place:
            params = self.params(False).replace("const Tensor& ", "Tensor ", 1)
            text += f"Tensor {self.in_place_name}({params}) {{\n" + self.body(
                "  return dispatch_in_place(op, std::move(in), a);"
            )
        return text


MADE = "// Generated from the declarations in holon/ops by tools/generate_ops.py.\n"


def header(text, includes, std=()):
    """A header of namespace holon; without text, of includes alone."""
    lines = [MADE + "#pragma once", *(["\n".join(f"#include <{h}>" for h in std)] if std else [])]
    lines.append("\n".join(f'#include "{h}"' for h in includes))
    return "\n\n".join(lines + ([text] if text else [])) + "\n"


def family_files(family, declared):
    """The texts of the files of one family, by their paths. declared: (Op, the declaration's text), in any order."""
    declared = sorted(declared, key=lambda d: d[0].name)
    ops = [op for op, body in declared if ".python_only()" not in body]
    names = "".join(f'inline constinit const OpName {identifier(op.name)}{{"{op.name}"}};\n' for op, _ in declared)
    functions = "".join(o.public_declaration() for o in ops)
    internal = "".join(o.internal_declaration() for o in ops)
    shares_structs = any(o.hidden and o.public_declaration() for o in ops)
    return {
        f"holon/ops/{family}.h": header(
            f"namespace holon {{\n\n{functions}\n}}  // namespace holon",
            ["holon/tensor/tensor.h"],
            ["array", "optional", "string_view", "vector"],
        ),
        f"holon/internal_ops/{family}.h": header(
            f"namespace holon {{\n\n{internal}\n}}  // namespace holon",
            [f"holon/ops/{family}.h" if shares_structs else "holon/tensor/tensor.h"],
            ["array", "optional", "string_view", "vector"],
        ),
        f"holon/op_names/{family}.h": header(
            f"namespace holon::op {{\n\n{names}\n}}  // namespace holon::op", ["holon/registry/op_name.h"]
        ),
    }


def all_files(sources):
    """The texts of all files, by their paths."""
    texts, families, bodies = {}, [], []
    for source in map(Path, sources):
        declared = [(Op.read(s, b), b) for s, b in declarations(source.read_text())]
        if source.with_suffix(".h").exists():
            if declared:
                sys.exit(f"generate_ops: {source} declares ops and has a header, which their functions' would hide")
            continue
        families.append(source.stem)
        bodies += [(op.name, op.definition()) for op, body in declared if ".python_only()" not in body]
        texts |= family_files(source.stem, declared)
    families.sort()
    users = ["holon/ops/indexing.h", "holon/ops/operators.h", "holon/ops/values.h"]
    texts["holon/ops.h"] = header("", sorted([f"holon/ops/{f}.h" for f in families] + users))
    texts["holon/internal_ops.h"] = header("", [f"holon/internal_ops/{f}.h" for f in families])
    texts["holon/op_names.h"] = header("", [f"holon/op_names/{f}.h" for f in families])
    texts["ops_functions.cpp"] = MADE + "\n".join(
        [
            '#include "holon/dispatch/dispatch.h"',
            '#include "holon/internal_ops.h"',
            '#include "holon/ops.h"\n\nnamespace holon {\n',
        ]
        + [text for _, text in sorted(bodies)]
        + ["}  // namespace holon\n"]
    )
    return texts


def write(path, text):
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def main():
    folder, texts = Path(sys.argv[1]), all_files(sys.argv[2:])
    for name, text in texts.items():
        write(folder / name, text)
    for made in ("holon/ops", "holon/internal_ops", "holon/op_names"):  # of a family that is no more
        for path in (folder / made).glob("*.*"):
            if path.relative_to(folder).as_posix() not in texts:
                path.unlink()


if __name__ == "__main__":
    main()
