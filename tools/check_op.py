#!/usr/bin/env python3
"""Prints what an op has and what it lacks: ./dev op NAME...

What is "missing" fails a test; what is "no" is a choice of the declaration, to be looked at once. Kernels of a CUDA
device are those of the emulator (./dev docs builds it) or of the device that is there.
"""

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests/python/ops")]
EMULATED = ROOT / "build/dev/lib/libholon_cuda_emulated.so"

MISSING = "missing"
# Of describe_ops(): shown as part of the signature, or of no interest for a new op.
NOT_SHOWN = {
    "name", "public_name", "schema", "signature", "args", "n_outputs", "output_names", "shapes", "aliases",
    "gives_number", "wraps_numbers", "elementwise", "scalar_overload", "in_place_name", "promotes_to_float",
}  # fmt: skip


@functools.cache
def lines_of(path):
    return path.read_text().splitlines()


def lines_with(pattern, files):
    """[(file, number of the first line with it)]"""
    found = []
    for path in sorted(files):
        for number, line in enumerate(lines_of(path), 1):
            if re.search(pattern, line):
                found.append((path, number))
                break
    return found


def places(pattern, folder, glob, root):
    return ", ".join(f"{p.relative_to(root)}:{n}" for p, n in lines_with(pattern, (root / folder).glob(glob)))


def is_public(op):
    return op["function"] or op["method"]


def names_in_python(op):
    names = [f"holon.{op['public_name']}"] * op["function"] + [f"Tensor.{op['public_name']}"] * op["method"]
    return ", ".join(names + [f"Tensor.{op['in_place_name']}"] * op["in_place"])


def declaration(op, root):
    name = op["name"].removesuffix("_scalar") if op["name"].endswith("_scalar") else op["name"]
    pattern = rf"HOLON_(OP|UNARY|BINARY)\(\s*({op['name']}|{name})\b"
    return places(pattern, "holon/ops", "*.cpp", root) or f"a library of ops ({op['family']})"


def has_device():
    return EMULATED.exists() or os.path.exists("/dev/nvidiactl")


def kernels(op, table):
    """{device: dtypes} in words."""
    if op["composed"]:
        return "composed of other ops: it has none of its own"
    if not op["example"]:
        return "not public: those of the ops that call it"
    import generate_support

    if table is None:
        table = generate_support.rows(op)
    cells = [(dtype, kind) for _, row in table for dtype, kind in row.items()]
    words = []
    for kind, what in (("cuda", "CPU and CUDA"), ("copies", "CPU; CUDA on copies in host memory"), ("cpu", "CPU only")):
        dtypes = list(dict.fromkeys(generate_support.SHORT[d] for d, k in cells if k == kind))
        if dtypes:
            words.append(f"{what}: {' '.join(dtypes)}")
    if words and not has_device():
        return f"{words[0].replace(' only', '')}; CUDA: not known, ./dev docs builds the emulator"
    return "; ".join(words) or MISSING


@functools.cache
def sample_counts():
    """{op: how many samples it has}, of the program that runs them."""
    command = [ROOT / "build/dev/tests/ops_test", "--gtest_filter=Cases.EveryOpHasOne"]
    listed = subprocess.run(command, env={**os.environ, "HOLON_TEST_LIST": "1"}, capture_output=True, text=True).stdout
    return {name: int(n) for name, n in re.findall(r"^cases of (\w+): (\d+)$", listed, re.M)}


def samples(op, root):
    if count := sample_counts().get(op["name"]):
        found = places(rf'"{op["name"]}"', "tests/cpp/ops/samples", "*.cpp", root)
        return f"{count}, {found or 'by a loop in tests/cpp/ops/samples'}"
    m = re.search(rf'\{{"{op["name"]}", "([^"]*)"\}}', (root / "tests/cpp/ops/cases.cpp").read_text())
    return f"exempt: {m[1]}" if m else f"{MISSING}: add() it in tests/cpp/ops/samples/"


def values(op, table):
    if not is_public(op):
        return "not public"
    name = op["public_name"]
    rows = sum(r.op == name for r in table.rows)
    wrongs = sum(w.op == name for w in table.wrongs)
    if rows:
        return f"{rows} calls against NumPy, {wrongs} wrong calls with their errors"
    if name in table.exempt:
        return f"exempt: {table.exempt[name]}"
    return f"{MISSING}: row() it in tests/python/ops/values_<family>.py"


def stubs(op, root):
    if not is_public(op):
        return "not public"
    found = lines_with(rf"def {op['public_name']}\(", [root / "python/holon/_C.pyi"])
    return f"python/holon/_C.pyi:{found[0][1]}" if found else f"{MISSING}: ./dev build writes them; commit the file"


def rule(op):
    if op["composed"]:
        return "that of the ops it is composed of"
    return (op["rule"] or MISSING) + (", linear" if op["linear"] else "")


def second_derivative(op, root):
    """By the test of all ops' samples, which lists those whose gradient has none."""
    test = root / "tests/cpp/ops/second_derivative_test.cpp"
    if not op["has_grad"] or not test.exists():
        return "no"
    table = test.read_text().partition("kWithoutSecondDerivative{")[2].partition("};")[0]
    without = dict(re.findall(r'\{"(\w+)", "([^"]*)"\}', table))
    return f"no: {without[op['name']]}" if op["name"] in without else "yes"


def checklist(op, value_table, support=None, root=ROOT):
    """[(what, found)] of a row of describe_ops(). support: the rows of generate_support, if they are known."""
    public = is_public(op)
    return [
        ("declaration", declaration(op, root)),
        ("doc", op["doc"] or (MISSING if public else "no")),
        ("example", op["example"] or (MISSING if public else "no")),
        ("C++", f"holon/ops/{op['family']}.h" if op["cpp_function"] else "no: for Python only"),
        ("Python", names_in_python(op) if public else "not public"),
        ("stubs", stubs(op, root)),
        ("sharding rule", rule(op)),
        ("gradient", "yes" if op["has_grad"] else "no"),
        ("second derivative", second_derivative(op, root)),
        ("kernels", kernels(op, support)),
        ("promotes", ", ".join(op["promoted"]) or "no"),
        ("masks", ", ".join(op["masks"]) or "no"),
        ("autocast class", op["autocast"]),
        ("FLOPs", "yes" if op["flops"] else "no: its cost is that of its bytes"),
        ("fused in graphs", op["fuses"]),
        ("view", op["view"] or "no"),
        ("writes any strides", "yes" if op["writes_strides"] else "no"),
        ("random", "yes" if op["random"] else "no"),
        ("runs on the host", "yes" if op["on_host"] else "no"),
        ("samples", samples(op, root)),
        ("values", values(op, value_table)),
    ]


def lacks(found):
    return found.startswith(MISSING)


def main():
    os.environ.pop("HOLON_SIMULATE", None)  # a simulated device has no kernels
    if EMULATED.exists() and not os.path.exists("/dev/nvidiactl"):
        os.environ.setdefault("HOLON_CUDA_LIBRARY", str(EMULATED))
    import importlib

    import op_table

    from holon import _C

    for path in sorted((ROOT / "tests/python/ops").glob("values_*.py")):
        importlib.import_module(path.stem)
    status = 0
    known = {op["name"]: op for op in _C.op_table()}
    for name in sys.argv[1:]:
        ops = [op for op in known.values() if name in (op["name"], op["public_name"])]
        if not ops:
            print(f"check_op: there is no op '{name}'", file=sys.stderr)
            status = 1
        for op in ops:
            print(op["signature"] if is_public(op) else op["schema"])
            for what, found in checklist(op, op_table):
                print(f"  {what:<19} {found}")
                status |= lacks(found)
            print()
    return status


if __name__ == "__main__":
    sys.exit(main())
